"""YAML documents as mappings of settings: strict about what would otherwise be lost without a word.

Only reads text; what the keys mean is the settings' business.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import TypeGuard

import yaml

from genrm_trio.judging.files import read_text
from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.settings import TOLERATED, is_unicode


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error: the first one would be lost without a word."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Build a value. The library lets through what Python's own types raise on one that only looks right."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
            kind = node.tag.rpartition(":")[2]
            problem = f"this is no valid {kind}; put it in quotes if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Hashable, object]:
    """Build a mapping and refuse a repeated key; a merged mapping's keys may be written again."""
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
        if isinstance(key, yaml.ScalarNode) and not is_unicode(key.value):
            raise yaml.constructor.ConstructorError(None, None, "a key is valid Unicode", key.start_mark)
        seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str, origin: str) -> object:
    """Parse YAML; an error names the line, and shows nothing of it."""
    try:
        return yaml.load(text, _UniqueKeys)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise StartupError(f"{origin} is not valid YAML{where}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise StartupError(f"{origin} is not valid YAML") from error
    except RecursionError:
        raise StartupError(f"{origin} is not valid YAML: nested too deeply") from None


def is_mapping(value: object) -> TypeGuard[dict[str, object]]:
    """Tell whether a YAML value is a mapping whose keys are text."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def tolerant(document: object, origin: str) -> dict[str, object]:
    """Return a document's fields without those that are tolerated; an empty document has none."""
    if document is None:
        return {}
    if not is_mapping(document):
        raise StartupError(f"{origin} must hold a mapping of settings to values")
    return {key: value for key, value in document.items() if key not in TOLERATED}


def read_file(path: Path) -> dict[str, object]:
    """Read a configuration file."""
    try:
        text = read_text(path)
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"{path} is not UTF-8 text") from error
    except ValueError as error:
        raise StartupError(f"{str(path)!r} is no path: {error}") from error
    return tolerant(parse_yaml(text, str(path)), str(path))
