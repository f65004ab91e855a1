"""What the documents promise about settings and commands is what the code does."""

import re
import textwrap
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.settings import Settings
from genrm_trio.ops.sources import load

ROOT = Path(__file__).resolve().parents[2]


def documented() -> dict[str, str]:
    """Return the text of the default of each field that docs/configuration.md lists."""
    rows = re.findall(r"^\| `([a-z_.0-9]+)` \| ([^|]*) \|", (ROOT / "docs" / "configuration.md").read_text(), re.M)
    assert len(rows) == len({name for name, _ in rows}), "a field is listed twice"
    return dict(rows)


def effective() -> dict[str, object]:
    """Return every field that can be set, by dotted name, with its default."""
    found: dict[str, object] = {}
    for name, value in Settings.model_validate({}).model_dump(mode="json").items():
        section = Settings.model_fields[name].annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found |= {f"{name}.{inner}": default for inner, default in value.items()}
        else:
            found[name] = value
    return found


def test_every_field_is_documented_with_its_default() -> None:
    documents, settings = documented(), effective()
    assert set(documents) == set(settings)
    for name, text in documents.items():
        if name != "default_principle":
            expected = None if text == "none" else yaml.safe_load(text.strip("`"))
            assert settings[name] == expected, name


def test_every_choice_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for name, field in Settings.model_fields.items():
        for choice in get_args(field.annotation):
            if isinstance(choice, str):
                (line,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
                assert f"`{choice}`" in line, f"{name}: {choice}"


def test_the_configuration_to_start_from_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartupError, match="control_auth_token"):
        load(ROOT / "deploy" / "config.yaml")
    monkeypatch.setenv("GENRM_TRIO_SESSION_SECRET", "s")
    monkeypatch.setenv("GENRM_TRIO_CHECKPOINT__CONTROL_AUTH_TOKEN", "t")
    assert load(ROOT / "deploy" / "config.yaml").settings.num_rollouts_per_prompt == 16


def test_the_documents_configurations_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRM_TRIO_SESSION_SECRET", "s")
    monkeypatch.setenv("GENRM_TRIO_CHECKPOINT__CONTROL_AUTH_TOKEN", "t")
    found = 0
    for path in (ROOT / "README.md", ROOT / "docs" / "configuration.md"):
        for block in re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text(), re.M | re.S):
            (tmp_path / "c.yaml").write_text(textwrap.dedent(block))
            load(tmp_path / "c.yaml")
            found += 1
    assert found >= 2
