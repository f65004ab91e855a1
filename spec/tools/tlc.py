"""Runs TLC on the spec's models and reads what it reports."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from genrm_trio.ops.tla import tlc
from genrm_trio.ops.tla.tlc import DEADLOCK, INVARIANT, JAR_VARIABLE, OK, PROPERTY, TlcError, jar

__all__ = ["DEADLOCK", "INVARIANT", "JAR_VARIABLE", "OK", "PROPERTY", "SPEC", "Run", "TlcError", "jar", "run"]

SPEC = Path(__file__).resolve().parent.parent


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
    kept: list[str] = []

    def hear(line: str) -> None:
        edge = _edge(line)
        if edge is None:
            kept.append(line)
        elif on_edge is not None:
            on_edge(edge)

    ended = tlc.run(config, module, hear, options=options, extra=extra, short=short, memory=memory, timeout_s=timeout_s)
    return replace(_report(ended.code, "\n".join([*kept, ""]), ended.seconds), cpu=ended.cpu)


def _edge(line: str) -> str | None:
    if not line.startswith('"EDGE '):
        return None
    return (tlc.printed(line) or "").removeprefix("EDGE ")


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
