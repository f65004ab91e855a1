"""A reduced soak: every ending is met, and memory, what is alive and descriptors are flat after each warm-up."""

from pathlib import Path

from tests.soak.counted import LEAK
from tests.soak.endings import ENDINGS
from tests.soak.run import soak

VERIFIES = 3000


async def test_memory_and_descriptors_stay_flat(tmp_path: Path) -> None:
    found = await soak(tmp_path, VERIFIES, generations=2, seed=1)
    assert not found.wrong, found.wrong
    assert found.verifies >= VERIFIES
    assert found.endings.keys() == {*ENDINGS, "checkpoint", "restored member"}


async def test_the_soak_finds_a_leak_that_is_put_in(tmp_path: Path) -> None:
    """Less than resident memory shows: what each verify asks, kept for ever, with four kilobytes and ten objects."""
    found = await soak(tmp_path, 1000, generations=1, seed=1, **{LEAK: "1"})
    assert all("memory" not in text for text in found.wrong)
    assert any("objects" in text for text in found.wrong)
    assert any("bytes" in text for text in found.wrong)
