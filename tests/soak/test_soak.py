"""A reduced soak: every ending is met, and memory and descriptors are flat after each warm-up."""

from pathlib import Path

from tests.soak.endings import ENDINGS
from tests.soak.run import soak

VERIFIES = 5000


async def test_memory_and_descriptors_stay_flat(tmp_path: Path) -> None:
    found = await soak(tmp_path, VERIFIES, generations=2, seed=1)
    assert not found.wrong, found.wrong
    assert found.verifies >= VERIFIES
    assert found.endings.keys() == {*ENDINGS, "checkpoint", "restored member"}
