"""The style guide as a test: what a reviewer would otherwise have to say again and again.

Each rule reads the files of the checkout and reports every place that breaks it. Ruff, mypy and
import-linter hold what they can hold; only the rest stands here.
"""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST_FUNCTION = 60  # lines from `def` to the end, docstring included: what fits on a screen
SHORTEST_HEADER = 40  # characters; less says no more than the file's name

# Written with character classes so that this file does not match itself.
FORBIDDEN = {
    "a machine path": r"(?<![\w.])/(?:[w]ork|[f]arm|[r]oot|[t]mp/bash)(?:/|\b)",
    "a registry host": r"(?:[p]ypi\.org|[p]ythonhosted|registry\.[n]pmjs|deb\.[d]ebian)",
    "how the project is developed": r"\b(?:sub[a]gent|[h]elper session|[t]ool library|[a]nthropic\.com)",
    "unfinished work": r"\b(?:[T]ODO|[F]IXME|[X]XX)\b|\b[N]otImplementedError\b",
}


@cache
def checkout() -> tuple[Path, ...]:
    """Return every text file that is tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split("\0")
    return tuple(sorted(ROOT / name for name in listed if name and (ROOT / name).is_file()))


def python_files(*folders: str) -> list[Path]:
    """Return the checkout's Python files, of the given top folders only when some are named."""
    found = [path for path in checkout() if path.suffix == ".py"]
    return [path for path in found if not folders or path.relative_to(ROOT).parts[0] in folders]


@cache
def tree(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def place(path: Path, node: ast.AST | int) -> str:
    """Return `file:line` for a report."""
    line = node if isinstance(node, int) else getattr(node, "lineno", 1)
    return f"{path.relative_to(ROOT)}:{line}"


def nodes(*folders: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield every syntax node of the Python files."""
    for path in python_files(*folders):
        for node in ast.walk(tree(path)):
            yield path, node


def lines(path: Path) -> list[str]:
    """Return a text file's lines; a file that is not UTF-8 has none."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def test_every_python_file_says_what_lives_in_it() -> None:
    broken = []
    for path in python_files():
        header = ast.get_docstring(tree(path)) or ""
        if path.name == "__init__.py" and not path.stat().st_size and "tests" in path.parts:
            continue  # it only makes a package of its folder
        if len(header) < SHORTEST_HEADER or header.startswith("Placeholder"):
            broken.append(place(path, 1))
    assert not broken, "a header of a few sentences is missing"


def test_every_script_says_what_it_is_for() -> None:
    scripts = [p for p in checkout() if p.suffix in {".sh", ".yaml", ".yml"} or p.name in {"Makefile", "run"}]
    broken = [place(p, 1) for p in scripts if not any(line.startswith("# ") for line in lines(p)[:3])]
    assert not broken, "the first lines must be a comment that says what the file is for"


def test_functions_fit_on_a_screen() -> None:
    broken = [
        f"{place(path, node)} {node.name}: {length} lines"
        for path, node in nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not broken


def is_blind(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler catches everything and does nothing with it."""
    named = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type else set()
    broad = handler.type is None or named & {"Exception", "BaseException"}
    idle = all(
        isinstance(step, ast.Pass | ast.Continue)
        or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
        for step in handler.body
    )
    return bool(broad and idle)


def test_no_error_is_swallowed() -> None:
    broken = [place(path, n) for path, n in nodes() if isinstance(n, ast.ExceptHandler) and is_blind(n)]
    broken += [place(p, n) for p, n in nodes() if isinstance(n, ast.ExceptHandler) and n.type is None]
    assert not broken, "name the exception, and do something with it"


def called(node: ast.AST) -> str:
    """Return the dotted name of what a call calls, an attribute names, or nothing."""
    target = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(target) if isinstance(target, ast.Attribute | ast.Name) else ""


def test_no_work_waits_for_the_threads_in_which_names_are_looked_up() -> None:
    broken = [
        place(path, node)
        for path, node in nodes("src")
        if isinstance(node, ast.Call)
        and called(node) == "trio.to_thread.run_sync"
        and "limiter" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not broken, "give it a limiter: hanging look-ups of a judge's name hold all of Trio's own threads"


def test_tests_wait_on_conditions_and_are_never_left_out() -> None:
    forbidden = {"time.sleep", "pytest.skip", "pytest.xfail", "pytest.importorskip"}
    forbidden |= {f"pytest.mark.{mark}" for mark in ("skip", "skipif", "xfail")}
    broken = [f"{place(path, node)} {called(node)}" for path, node in nodes("tests") if called(node) in forbidden]
    broken += [
        place(path, node)
        for path, node in nodes("tests")
        if isinstance(node, ast.ImportFrom) and node.module == "time" and any(a.name == "sleep" for a in node.names)
    ]
    assert not broken


def test_silenced_checks_name_their_rule_and_say_why() -> None:
    """In tests the rule's name is enough: there a type is often broken on purpose, and plainly so."""
    coded = re.compile(r"#\s*type:\s*ignore\[[\w, -]+\]|#\s*noqa:\s*[A-Z]+\d+")
    reasoned = re.compile(r"# type: ignore\[[\w, -]+\]\s+# \w|# noqa: BLE001\W+\w")
    broken = []
    for path in python_files():
        for number, line in enumerate(lines(path), 1):
            silenced = re.search(r"#\s*type:\s*ignore|#\s*noqa", line)
            in_need = "tests" not in path.parts and re.search(r"#\s*type:\s*ignore|#\s*noqa:\s*BLE001", line)
            if silenced and not (coded.search(line) and (not in_need or reasoned.search(line))):
                broken.append(f"{place(path, number)} {line.strip()}")
    assert not [b for b in broken if Path(__file__).name not in b], "write the code and the reason beside it"


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_checkout_speaks_of_the_project_alone(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.IGNORECASE if "how" in what else 0)
    broken = [
        f"{place(path, number)} {line.strip()[:100]}"
        for path in checkout()
        for number, line in enumerate(lines(path), 1)
        if pattern.search(line)
    ]
    assert not broken, f"found {what}"


def events_logged(node: ast.Call) -> list[ast.expr]:
    """Return the argument that names a log line's event, if the call logs one, by itself or through `partial`."""
    levels = ("debug", "info", "warning", "error", "critical", "exception")
    writes = {f"{logger}.{level}" for logger in ("log", "told") for level in levels}
    if called(node) in writes | {"report"}:
        return node.args[:1]
    return node.args[1:2] if called(node) == "partial" and called(node.args[0]) in writes else []


def test_log_events_are_names() -> None:
    """What they say in words is the field `text`."""
    found = [(path, event) for path, n in nodes("src") if isinstance(n, ast.Call) for event in events_logged(n)]
    named = {"event"}  # handed on by `report`
    broken = [
        f"{place(path, event)} {ast.unparse(event)}"
        for path, event in found
        if not (isinstance(event, ast.Constant) and re.fullmatch(r"[a-z]+(_[a-z]+)*", str(event.value)))
        and ast.unparse(event) not in named
    ]
    assert len(found) > 20
    assert not broken, "an event is a snake_case name"


def test_the_core_never_awaits() -> None:
    waiting = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    broken = [place(p, n) for p, n in nodes("src") if "core" in p.parts and isinstance(n, waiting)]
    assert not broken, "state changes in synchronous steps; waiting is the runtime's"


def test_the_core_imports_the_standard_library_only() -> None:
    import sys

    allowed = set(sys.stdlib_module_names) | {"genrm_trio"}
    broken = []
    for path, node in nodes("src"):
        if "core" not in path.parts:
            continue
        if isinstance(node, ast.Import):
            broken += [place(path, node) for name in node.names if name.name.split(".")[0] not in allowed]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            broken += [place(path, node)] if (node.module or "").split(".")[0] not in allowed else []
    assert not broken


def test_every_dependency_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    wanted = [
        *project["dependencies"],
        *(d for group in project["optional-dependencies"].values() for d in group),
    ]
    unexplained = [d for d in wanted if not re.search(rf'^\s*"{re.escape(d)}",\s+# \w.+', text, re.MULTILINE)]
    assert not unexplained, "say beside each dependency what it is for"


def test_the_lock_pins_every_package_with_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", text.strip())
    broken = [b.splitlines()[0] for b in blocks if "==" not in b.splitlines()[0] or "--hash=sha256:" not in b]
    assert not broken
    assert "://" not in text, "the lock names no host"


def test_commands_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    broken = []
    for path in checkout():
        if path.suffix != ".md" and path != ROOT / ".ci" / "run":
            continue
        for number, line in enumerate(lines(path), 1):
            named = re.findall(r"(?:`|^\s*\$?\s*|&& )make ([a-z][a-z-]*)", line)
            broken += [f"{place(path, number)} make {name}" for name in named if name not in targets]
    assert not broken
