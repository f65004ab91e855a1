"""Gym's own start: our fields, the checkpoint section and the judge's address out of its environment variables.

Gym sets the two variables when it starts a server itself (contract 12). Nothing here is checked beyond its
shape: that is done with the settings of every other source.
"""

from collections.abc import Mapping

from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.documents import is_mapping, parse_yaml, tolerant
from genrm_trio.ops.settings import Settings, judge_address

GYM_DICT = "NEMO_GYM_CONFIG_DICT"
GYM_PATH = "NEMO_GYM_CONFIG_PATH"
GYM_KINDS = frozenset({"resources_servers", "responses_api_models", "responses_api_agents"})
"""What stands between a name and its server in Gym's configuration."""


def gym_configuration(environ: Mapping[str, str]) -> dict[str, object] | None:
    """Return the configuration that Gym handed over, if it did."""
    if GYM_DICT not in environ:
        return None
    document = parse_yaml(environ[GYM_DICT], GYM_DICT)
    if not is_mapping(document):
        raise StartupError(f"{GYM_DICT} must hold a mapping")
    return document


def _gym_server(gym: Mapping[str, object], name: str) -> dict[str, object] | None:
    """Return the fields of the server that a top-level key names: `{name: {kind: {implementation: fields}}}`."""
    entry = gym.get(name)
    if is_mapping(entry) and len(entry) == 1 and GYM_KINDS & entry.keys():
        (implementations,) = entry.values()
        entry = next(iter(implementations.values()), None) if is_mapping(implementations) else None
    return entry if is_mapping(entry) else None


def gym_entry(gym: Mapping[str, object], name: str) -> dict[str, object]:
    """Return our own fields out of Gym's configuration, with `name` and the top level's `checkpoint`."""
    fields = _gym_server(gym, name)
    if fields is None:
        raise StartupError(f"{GYM_PATH} names {name!r}, but {GYM_DICT} has no such server")
    document = {**tolerant(fields, f"{GYM_DICT}, entry {name}"), "name": name}
    if gym.get("checkpoint") is not None:
        document["checkpoint"] = gym["checkpoint"]
    return document


def with_gym_judge(settings: Settings, gym: Mapping[str, object] | None) -> Settings:
    """Fill in the judge's address from the entry that `genrm_model_server` names, when nothing else gives one."""
    judge, reference = settings.judge, settings.genrm_model_server
    if gym is None or reference is None or judge.backend == "recorded" or judge.base_url or judge.panel:
        return settings
    server = _gym_server(gym, reference.name) or {}
    host, port = server.get("host"), server.get("port")
    if not isinstance(host, str) or not isinstance(port, int):
        return settings
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        checked = judge_address(address)
    except ValueError as error:
        raise StartupError(f"{GYM_DICT}, entry {reference.name}: host and port of the judge: {error}") from None
    return settings.model_copy(update={"judge": judge.model_copy(update={"base_url": checked})})
