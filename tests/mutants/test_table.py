"""The table of mutants fits the source and the tests: it rots silently otherwise, for running it takes long."""

import ast
import shutil
from pathlib import Path

import pytest
from tests.core.clients import CLIENT_INVARIANTS, CLIENT_STATE_INVARIANTS
from tests.mutants.run import ROOT, TableError, mutate
from tests.mutants.table import MUTANTS, Mutant

from genrm_trio.core.invariants import STATE_INVARIANTS, STEP_INVARIANTS

NAMES = """
    TermListStale NoSupersede StaleAccepted WatermarkNotKept RetireDropsLiveWatermark RestoreNoWatermark
    ExpireWatermarkWhileRetained RetireKeepsWatermark WatermarkNotExported DropLeaksSessions RetireLeaksSession
    UngroupedRecorded RetireKeepsEmptyCohort ReplayStaysPending EvictNeededByAge ExportSibling DigestIgnored
    PerMemberKind ExportTearsGroup UngroupedNotPopped CloseKeepsSessions NoHold NoRecheck JudgeFailureNotHeld
    CompletedNotExported RestoreAsCollecting JudgeFailureNotExported EvictNeededByCount EndWhileClosed
    RetireDuringCommit HeldNotExported KeepAnyMember RetireDropsCohort RestoreForgetsSessions RetireNoop
    LiveRetireKeepsSlot RetireWaitsForCohort LiveRetireFreesShared PartialRestore SupersedeLeavesWaiters
    NoCollectTimeout LostWakeup TtlNever SessionNeverIdles
"""
MODEL = frozenset(NAMES.split())
"""The mutants of the formal model."""

INVARIANTS = (
    STATE_INVARIANTS.keys() | STEP_INVARIANTS.keys() | CLIENT_INVARIANTS.keys() | CLIENT_STATE_INVARIANTS.keys()
)


def test_every_mutant_of_the_model_is_one_of_the_source() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert set(names) >= MODEL


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src" / "genrm_trio", folder / "genrm_trio", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fragment_is_found_once_and_what_replaces_it_compiles(mutant: Mutant, source: Path) -> None:
    files = {file: (source / "genrm_trio" / file).read_text(encoding="utf-8") for file, _, _ in mutant.edits}
    mutate(source, mutant)
    for file, text in files.items():
        assert (source / "genrm_trio" / file).read_text(encoding="utf-8") != text
        (source / "genrm_trio" / file).write_text(text, encoding="utf-8")


def test_a_fragment_that_does_not_fit_is_an_error(source: Path) -> None:
    for fragment in ("there is no such line", "\n"):
        with pytest.raises(TableError):
            mutate(source, Mutant("Rotten", "", (("core/registry.py", fragment, "x"),), ()))


def test_the_named_tests_exist() -> None:
    missing = []
    for mutant in MUTANTS:
        assert mutant.tests, f"{mutant.name} names no test"
        for test in mutant.tests:
            file, name = test.split("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
            missing += [test] if name not in functions else []
    assert not missing


def test_every_invariant_is_broken_by_a_mutant() -> None:
    broken = {invariant for mutant in MUTANTS for invariant in mutant.breaks}
    assert broken == INVARIANTS
