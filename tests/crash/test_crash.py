"""The randomised crash test as CI runs it, and what shows that schedules replay and that violations are found.

The deep run plays more of the same: `python -m tests.crash.runs --schedules 200 --seed S`.
"""

import shutil
from pathlib import Path

import pytest
from tests.crash.checker import Checker, Violation
from tests.crash.runs import run_all
from tests.crash.schedule import make
from tests.support.gym import Outcome
from tests.support.server_process import ROOT, forks
from tests.support.verdicts import EPOCH, AnswerMark

SCHEDULES = 20
OTHER_SEEDS = range(100, 140)
"""What is played when a schedule that found a broken rule before does not meet it this time."""


async def test_no_rollout_loses_doubles_swaps_or_waits_for_its_outcome(tmp_path: Path) -> None:
    with forks(tmp_path) as socket:
        results = await run_all(range(1, SCHEDULES + 1), tmp_path, socket)
    assert not results.failures, "\n".join([*results.report(), results.summary])
    assert len(results.played) == SCHEDULES
    assert sum(run.replays for run in results.played) > SCHEDULES, "the schedules must show something"


def test_a_schedule_is_the_same_for_the_same_seed() -> None:
    assert make(7) == make(7)
    assert len({make(seed).steps for seed in range(50)}) == 50


Edit = tuple[str, str, str]

# Rules of the source that are taken out: file, fragment, replacement; and schedules that have found each. All must be
# found by what clients saw alone.
BROKEN: dict[str, tuple[list[Edit], list[int]]] = {
    "nothing is exported": (
        [
            (
                "core/record.py",
                "    if cohort.active and cohort.phase is not Phase.HELD:\n",
                "    if True:\n",
            )
        ],
        [10, 20, 21, 28],
    ),
    "a sibling's outcome is exported": (
        [
            (
                "core/record.py",
                '    return state | {"result": dict(member.result.fields)}\n',
                "    mates = cohort.by_index\n"
                "    mate = mates[(mates.index(member) + 1) % len(mates)]\n"
                '    return state | {"result": dict((mate.result or member.result).fields)}\n',
            )
        ],
        [10, 20, 21, 28],
    ),
    "held outcomes are not exported": (
        [
            (
                "core/record.py",
                "    if cohort.active and cohort.phase is not Phase.HELD:\n",
                "    if cohort.active:\n",
            )
        ],
        [20, 21, 10, 42],
    ),
    "judge failures are not exported": (
        [
            (
                "core/record.py",
                "    if isinstance(cohort.failure, CohortFailed):\n",
                "    if cohort.failure is not None:\n",
            )
        ],
        [10, 22, 24, 28],
    ),
    "outcomes are published while admission is closed": (
        [
            (
                "core/registry.py",
                '        if not self.admission.open:\n            self._emit("Publish"',
                '        if self.closed:\n            self._emit("Publish"',
            ),
            ("runtime/life.py", "while not registry.admission.open:\n", "while False:\n"),
        ],
        [10, 20, 21, 27],
    ),
    "finished cohorts go although they are needed": (
        [
            (
                "core/state.py",
                "        return bool(cohort.waiters) or any(session in self.sessions for session in cohort.sessions)\n",
                "        return bool(cohort.waiters)\n",
            )
        ],
        [10, 20, 21, 28],
    ),
    "any answer gets the stored outcome": (
        [
            (
                "core/cohort.py",
                "        return answer.digests.get(self.scheme) == self.digest\n",
                "        return True\n",
            )
        ],
        [17, 18, 68, 31],
    ),
    "a retire leaves restored members": (
        [("core/registry.py", "        if pending and not cohort.held_by(index):\n", "        if False:\n")],
        [5, 7, 48, 60],
    ),
    "verify replies end sessions that a close follows": (
        [("web/routes.py", '        if follows in {"", "0", "false"} and not', "        if not")],
        [4, 5, 20, 21],
    ),
    "a closed session stays open": (
        [
            (
                "core/registry.py",
                '            self._end(session)\n            reply = "ended"\n',
                '            reply = "ended"\n',
            )
        ],
        [1, 2],
    ),
}


def broken_source(folder: Path, edits: list[Edit]) -> Path:
    """A copy of the product in which these edits are made."""
    shutil.copytree(ROOT / "src/genrm_trio", folder / "genrm_trio", ignore=shutil.ignore_patterns("__pycache__"))
    for file, fragment, replacement in edits:
        path = folder / "genrm_trio" / file
        text = path.read_text()
        assert text.count(fragment) == 1, f"the fragment is once in {file}: {fragment}"
        path.write_text(text.replace(fragment, replacement))
    return folder


@pytest.mark.parametrize("what", BROKEN)
async def test_a_broken_rule_is_found_by_what_clients_saw(tmp_path: Path, what: str) -> None:
    edits, seeds = BROKEN[what]
    with forks(tmp_path, broken_source(tmp_path / "source", edits)) as socket:
        results = await run_all([*seeds, *OTHER_SEEDS], tmp_path, socket, until_failure=True)
    assert results.failures, "no schedule found it"
    assert all(isinstance(error, Violation) for error in results.failures.values()), "\n".join(results.report())


def told(checker: Checker, index: int, reward: float, *, seconds: float = 0.0, known: bool = False) -> None:
    mark = AnswerMark("g", 0, index)
    checker.sent(mark)
    checker.told(mark, Outcome(mark.worth + reward), seconds, must_be_known=known)


def test_what_the_checker_accepts_and_what_not() -> None:
    checker = Checker()
    told(checker, 0, EPOCH)
    told(checker, 0, EPOCH, known=True)
    told(checker, 1, EPOCH)
    for index, reward, seconds, complaint in (
        (0, 0.0, 0.0, "two outcomes"),
        (2, 0.0, 0.0, "siblings disagree"),
        (2, 0.4, 0.0, "not its own"),
        (1, EPOCH, 10.0, "waited"),
    ):
        with pytest.raises(Violation, match=complaint):
            told(checker, index, reward, seconds=seconds, known=True)
        checker.history.facts.pop(AnswerMark("g", 0, 2), None)
    pair = AnswerMark("g", 0, 0), AnswerMark("g", 0, 1)
    checker.judged(*pair, 1)
    with pytest.raises(Violation, match="judged twice"):
        checker.judged(*pair, 2)
    checker.back_to(checker.history)
    with pytest.raises(Violation, match="judged twice"):
        checker.judged(*pair, 1)
