"""What is wrong with a configuration, in words: which field, why, and the nearest name for an unknown one.

Knows the fields from the models alone. A value of a secret field, or of a group that may hold one, is never
part of a message.
"""

import difflib
import os
from collections.abc import Collection, Mapping
from typing import get_args

from pydantic import BaseModel, SecretStr
from pydantic_core import ErrorDetails

from genrm_trio.judging.text import shown
from genrm_trio.ops.settings import ENV_NESTING, ENV_PREFIX, Settings

NOT_SETTINGS = frozenset(f"{ENV_PREFIX}{name}" for name in ("TLC_JAR", "FUZZ", "SWEEP", "CRASH", "SOAK", "BENCH"))
"""Variables with our prefix that the project's checks read."""


class StartupError(Exception):
    """The configuration cannot be used; the text says why, in one message for the person who starts us."""


class OperationFailed(Exception):
    """A command that could start did not succeed; the text says why, for the person who ran it. Exit code 1."""


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside a group and its groups: a nursery wraps what its tasks raise."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def one_message(origin: str, problems: list[str]) -> str:
    """Join what is wrong into one message."""
    if len(problems) == 1:
        return f"{origin}: {problems[0]}"
    return "\n".join([f"{origin}: {len(problems)} problems", *(f"  - {problem}" for problem in problems)])


LONGEST_SHOWN = 100
"""Characters of a name or a value that are shown."""
NEAR_ENOUGH = 0.6
"""How alike two names must be, of 1, before one is taken for a slip of the other."""


def said(error: ErrorDetails, flags: Collection[str] = ()) -> str:
    """Put one of pydantic's errors into words: which field, what is wrong, and what stood there unless secret.

    `flags` are the fields that flags of the command line set.
    """
    path = ".".join(str(part) for part in error["loc"])[:LONGEST_SHOWN]
    if error["type"] == "extra_forbidden":
        return _unknown(error["loc"], path)
    if error["type"] in {"model_type", "model_attributes_type"} and (within := _models_at(error["loc"])):
        names = within[0].model_fields
        example = "base_url" if "base_url" in names else next(iter(names))
        return f"{path}: is a section; its settings stand under it, as in {path}.{example}"
    reason = error["msg"].removeprefix("Value error, ")
    variable = ENV_PREFIX + path.replace(".", ENV_NESTING).upper()
    if path in flags:
        path = f"--{path.replace('_', '-')}"
    elif variable in {name.upper() for name in os.environ}:
        path = f"{path}, set by {variable}"
    value = error["input"]
    holds_secret = _is_secret(error["loc"]) or error["loc"][-1] == "base_url"  # which may hold a password
    if holds_secret or not isinstance(value, str | int | float | None):
        return f"{path}: {reason}"
    text = value if isinstance(value, str) else shown(value)
    return f"{path}: {reason} (it is {text[:LONGEST_SHOWN]!r})"


def _unknown(location: tuple[int | str, ...], path: str) -> str:
    """Name an unknown field, and the nearest known one when it is near: of its section, or of all at the top level."""
    *section, name = (str(part)[:LONGEST_SHOWN] for part in location)
    inside = [known for model in _models_at(location[:-1]) for known in model.model_fields]
    near = difflib.get_close_matches(name, inside if section else _known_fields(Settings), n=1, cutoff=NEAR_ENOUGH)
    return f"unknown field {path}" + (f"; the nearest known one is {'.'.join([*section, *near])}" if near else "")


def _sections(model: type[BaseModel], name: str) -> list[type[BaseModel]]:
    """Return the settings groups that a field holds, looked for inside optional and tuple types too."""
    found, open_types = [], [model.model_fields[name].annotation]
    while open_types:
        kind = open_types.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
        open_types.extend(get_args(kind))
    return found


def _known_fields(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every field's dotted name."""
    names = []
    for name in model.model_fields:
        names.append(prefix + name)
        for section in _sections(model, name):
            names += _known_fields(section, f"{prefix}{name}.")
    return names


def _is_secret(location: tuple[int | str, ...]) -> bool:
    """Tell whether an error's place is a secret field, or a group that may hold one."""
    models: list[type[BaseModel]] = [Settings]
    secret = True
    for part in location:
        if isinstance(part, int):
            continue
        holders = [model for model in models if part in model.model_fields]
        secret = any(SecretStr in _leaves(model.model_fields[part].annotation) for model in holders)
        models = [section for model in holders for section in _sections(model, part)]
    return secret or bool(models)


def _models_at(location: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """Return the settings groups that may stand at an error's place."""
    models: list[type[BaseModel]] = [Settings]
    for part in location:
        if isinstance(part, str):
            models = [section for m in models if part in m.model_fields for section in _sections(m, part)]
    return models


def _leaves(kind: object) -> list[object]:
    """Return a type and everything inside its brackets."""
    return [kind, *(leaf for inner in get_args(kind) for leaf in _leaves(inner))]


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse a variable with our prefix that names no field: the library would pass over it in silence."""
    fields = _known_fields(Settings)
    known = {ENV_PREFIX + name.replace(".", ENV_NESTING).upper() for name in fields}
    free_form = tuple(f"{ENV_PREFIX}{name}{ENV_NESTING}" for name in ("GENRM_RESPONSES_CREATE_PARAMS", "JUDGE__PANEL"))
    for name in sorted(environ):
        upper = name.upper()
        if upper.startswith(ENV_PREFIX) and upper not in known | NOT_SETTINGS and not upper.startswith(free_form):
            bare = sorted(variable.removeprefix(ENV_PREFIX) for variable in known)
            near = difflib.get_close_matches(upper.removeprefix(ENV_PREFIX), bare, n=1, cutoff=NEAR_ENOUGH)
            hint = f"; the nearest known one is {ENV_PREFIX}{near[0]}" if near else ""
            raise StartupError(f"environment variable {name} names no setting{hint}")
