"""Where settings come from: a YAML file or Gym's variables, then the environment, then flags (contract 13).

Whatever is wrong in them becomes one `StartupError` whose text a person can act on; a value of a secret
field never gets into it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsError

from genrm_trio.ops.complaints import StartupError, check_environment, one_message, said
from genrm_trio.ops.documents import read_file
from genrm_trio.ops.gym import GYM_DICT, GYM_PATH, gym_configuration, gym_entry, with_gym_judge
from genrm_trio.ops.refusals import refusals
from genrm_trio.ops.settings import ENV_PREFIX, JUDGE_PARAMETERS, Settings

EXAMPLE_MEMBERS = 15
"""How many answers each row of the shipped example has."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings and, for the first line of the log, where they came from."""

    settings: Settings
    origin: str
    is_example: bool = False


def load(config: Path | None, flags: Mapping[str, object] | None = None) -> Loaded:
    """Return the effective settings.

    Raises:
        StartupError: a source cannot be read, a field is unknown or has a bad value, or a combination is refused.
    """
    check_environment(os.environ)
    gym = gym_configuration(os.environ)
    loaded = _base(config, gym, os.environ)
    settings = _validated(loaded.document, loaded.origin, flags or {})
    settings = with_gym_judge(settings, gym)
    if broken := refusals(settings):
        raise StartupError(one_message(loaded.origin, broken))
    return Loaded(settings, loaded.origin, loaded.is_example)


@dataclass(frozen=True, slots=True)
class _Base:
    """The lowest layer, before the environment and the flags."""

    document: Mapping[str, object]
    origin: str
    is_example: bool = False


def _base(config: Path | None, gym: Mapping[str, object] | None, environ: Mapping[str, str]) -> _Base:
    """Choose the lowest layer: the file, else Gym's entry, else, without any judge setting, the example."""
    if config is not None:
        return _Base(read_file(config), str(config))
    if gym is not None and GYM_PATH in environ:
        return _Base(gym_entry(gym, environ[GYM_PATH]), f"{GYM_DICT}, entry {environ[GYM_PATH]}")
    if any(name.upper().startswith((f"{ENV_PREFIX}JUDGE", f"{ENV_PREFIX}GENRM_MODEL_SERVER")) for name in environ):
        return _Base({}, "the environment")
    return _Base(
        {
            "judge": {"backend": "recorded", "recording": str(example_rows())},
            "num_rollouts_per_prompt": EXAMPLE_MEMBERS,
        },
        "the shipped example",
        is_example=True,
    )


def example_rows() -> Path:
    """Return the shipped rows of real answers with their recorded scores."""
    return Path(str(resources.files("genrm_trio") / "examples" / "arena_cohorts.jsonl"))


def _validated(document: Mapping[str, object], origin: str, flags: Mapping[str, object]) -> Settings:
    """Lay the three sources over each other and check every field."""
    lowest = {"genrm_responses_create_params": JUDGE_PARAMETERS, **document}

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=lowest)

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Layered(**given)  # type: ignore[arg-type]  # names and values are checked by the model itself
    except ValidationError as error:
        raise StartupError(one_message(origin, [said(e, given) for e in error.errors(include_url=False)])) from None
    except SettingsError as error:
        raise StartupError(f"{ENV_PREFIX}* in the environment: {error}") from None
    except RecursionError:
        raise StartupError(f"{origin}, or {ENV_PREFIX}* in the environment: nested too deeply") from None


def shown(settings: Settings) -> str:
    """Return the settings as YAML with every secret masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)
