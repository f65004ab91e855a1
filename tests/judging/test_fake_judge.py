"""The scripted judge as a process of its own, as other tests and the bench use it."""

import subprocess
import sys
from pathlib import Path

import httpx2
import trio
from tests.support.fake_judge import verdict_text
from tests.support.judging_kit import ASK, judge_of, ticket

ROOT = Path(__file__).parent.parent.parent


async def test_it_serves_is_steered_and_counts(tmp_path: Path) -> None:
    ready = tmp_path / "url"
    command = [sys.executable, "-m", "tests.support.fake_judge", "--ready-file", str(ready)]
    with trio.fail_after(30):
        process = await trio.lowlevel.open_process(command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            url = (await process.stdout.receive_some()).decode().strip()
            assert ready.read_text() == url
            judge = judge_of(url, retries=1, retry_sleep_s=0.001)
            async with httpx2.AsyncClient(base_url=url) as client:
                then = {"text": verdict_text(1, 5, 6)}
                await client.post("/_script", json={"replies": [{"status": 500}], "then": then})
                answered = await judge.compare(ASK, ticket())
                counts = (await client.get("/_calls")).json()
            await judge.aclose()
        finally:
            process.kill()
            await process.wait()
            if process.stdout is not None:
                await process.stdout.aclose()
    assert answered.overall is not None
    assert (answered.overall.score_2, answered.attempts) == (5.0, 2)
    assert (counts["calls"], counts["in_flight"]) == (2, 0)
