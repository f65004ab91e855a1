"""From settings to the plain values and objects that the inner rooms take.

Every translation of a setting into another room's word stands here once. What cannot be built is a
`StartupError`.
"""

import random
import secrets
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from genrm_trio.checkpoints.phases import LeaseRules
from genrm_trio.checkpoints.store import FileStore
from genrm_trio.core.state import Limits
from genrm_trio.judging.chat import Chat
from genrm_trio.judging.endpoint import Address, Endpoint
from genrm_trio.judging.judge import Judge, Observer
from genrm_trio.judging.panel import Panel
from genrm_trio.judging.rating import load_method
from genrm_trio.judging.recorded import RecordedJudge
from genrm_trio.judging.recorder import Recorder
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.judging.template import JudgeTemplate
from genrm_trio.judging.transport import Dialect, HttpJudge, TransportRules
from genrm_trio.judging.verdict import VerdictRules
from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.refusals import CONNECTIONS_BESIDE_HELD
from genrm_trio.ops.settings import JudgeEndpoint, JudgeSettings, Settings
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.server import Policy, Server
from genrm_trio.web.policy import WebPolicy
from genrm_trio.web.serving.descriptors import Sockets
from genrm_trio.web.serving.limits import ServingLimits

T = TypeVar("T")


def _by_name(kind: type[T], *sources: object, **named: Any) -> T:
    """Build a dataclass from the settings that bear its fields' names, the given ones first."""
    for field in fields(kind):  # type: ignore[arg-type]  # every kind handed in is a dataclass
        for source in sources:
            if field.name not in named and hasattr(source, field.name):
                named[field.name] = getattr(source, field.name)
    return kind(**named)


def state_limits(settings: Settings) -> Limits:
    """Return the bounds of the state, and which variant of the contract it follows."""
    return _by_name(
        Limits,
        settings,
        settings.limits,
        cohort_size=settings.num_rollouts_per_prompt,
        record_sessions=settings.checkpoint.enabled,
        fixed_baseline=settings.comparison_mode == "fixed_baseline",
        rubrics=settings.score_source == "rubric_mean",
    )


def scoring_rules(settings: Settings) -> ScoringRules:
    """Return how scores are made of verdicts; loads what the aggregation needs, so that no cohort waits for it."""
    load_method(settings.aggregator_method)
    return _by_name(ScoringRules, settings)


def verdict_rules(settings: Settings) -> VerdictRules:
    """Return how a judge's text is read."""
    return _by_name(VerdictRules, settings, mode=settings.verdict_rules)


def policy(settings: Settings) -> Policy:
    """Return how the runtime behaves."""
    return _by_name(
        Policy,
        settings,
        limits=state_limits(settings),
        scoring=scoring_rules(settings),
        collection_timeout_s=settings.cohort_collection_timeout_s,
        evaluation_timeout_s=settings.cohort_evaluation_timeout_s,
        strategy=settings.comparison_strategy,
        judges=settings.num_judges_per_comparison,
        max_concurrency=settings.judge.max_concurrency,
    )


def serving_limits(settings: Settings) -> ServingLimits:
    """Return the bounds of connections and requests."""
    return _by_name(ServingLimits, settings, settings.limits)


def sockets(settings: Settings) -> Sockets:
    """Return how many sockets may be open at once. Each endpoint of a panel keeps the connections of its last calls."""
    judge = settings.judge
    endpoints = 0 if judge.backend == "recorded" else len(judge.panel) or 1
    return Sockets(settings.max_connections, settings.limits.refusal_connections, judge.max_concurrency * endpoints)


def within_descriptors(settings: Settings, limit: int) -> Settings:
    """Return the settings with the bounds that a limit of open files leaves.

    What held members need of the connections stays free of others (contract 14.15), so their bound is lowered, too.

    Raises:
        StartupError: the limit does not leave enough for one cohort.
    """
    wanted = sockets(settings)
    left, members = wanted.within(limit), settings.num_rollouts_per_prompt
    held = min(settings.max_held_members, left.connections - CONNECTIONS_BESIDE_HELD)
    if held < members:
        least = wanted.least(members + CONNECTIONS_BESIDE_HELD)
        raise StartupError(
            f"the limit of open files is {limit}, but with judge.max_concurrency {settings.judge.max_concurrency} and "
            f"num_rollouts_per_prompt {members} it must be at least {least}: {raising(wanted)}, or lower "
            "judge.max_concurrency"
        )
    changes = {
        "max_connections": left.connections,
        "max_held_members": held,
        "limits": settings.limits.model_copy(update={"refusal_connections": left.refusals}),
    }
    return settings.model_copy(update=changes)


def raising(wanted: Sockets) -> str:
    """Say how the limit of open files is raised to what the configured bounds need."""
    return f"raise it (ulimit -n {wanted.needed}, or LimitNOFILE={wanted.needed} in the systemd unit)"


def web_policy(settings: Settings) -> WebPolicy:
    """Return the settings of the HTTP surface. Without a secret of its own a process signs with a random one."""
    return _by_name(
        WebPolicy,
        settings,
        settings.limits,
        session_secret=_clear(settings.session_secret) or secrets.token_urlsafe(),
        data_auth_token=_clear(settings.data_auth_token),
        checkpoints=settings.checkpoint.enabled,
        control_auth_token=_clear(settings.checkpoint.control_auth_token),
    )


def control(settings: Settings, server: Server, trouble: Callable[[str], None]) -> Control:
    """Return the control plane, over files."""
    section = settings.checkpoint
    root = section.root.absolute() if section.root is not None else None
    rules = LeaseRules(max_deadline_s=section.max_deadline_s, grace_s=section.lease_grace_seconds)
    store = FileStore(settings.name, root=root)
    return Control(server, store, instance=settings.name, rules=rules, trouble=trouble)


def transport_rules(settings: Settings) -> TransportRules:
    """Return the budget and the times of judge calls."""
    return TransportRules(
        name=settings.genrm_model_server.name if settings.genrm_model_server else "judge",
        timeout_s=settings.judge_request_timeout_s,
        retries=settings.genrm_parse_retries,
        retry_sleep_s=settings.genrm_parse_retry_sleep_s,
        max_reply_bytes=settings.judge.max_reply_bytes,
    )


def make_judge(settings: Settings, observer: Observer) -> Judge:
    """Return the judge of the settings.

    Raises:
        StartupError: an address, a template, a parameter or a recording cannot be used.
    """
    try:
        return _recorded(settings) if settings.judge.backend == "recorded" else _live(settings, observer)
    except ValueError as error:
        raise StartupError(str(error)) from None


def recorded_to(path: Path, judge: Judge, observer: Observer) -> Judge:
    """Return a judge that asks the given one and keeps its verdicts in a file; StartupError when it cannot."""
    try:
        return Recorder(judge, path, observer)
    except ValueError as error:
        raise StartupError(str(error)) from None


def _recorded(settings: Settings) -> RecordedJudge:
    """Return the judge of a recording."""
    assert settings.judge.recording is not None, "start-up refuses a recorded judge without a recording"
    return RecordedJudge.load(settings.judge.recording, verdict_rules(settings))


def _live(settings: Settings, observer: Observer) -> HttpJudge:
    """Return a judge behind HTTP."""
    return HttpJudge(
        _dialect(settings),
        Panel([_endpoint(at) for at in _addresses(settings.judge)]),
        verdict_rules(settings),
        transport_rules(settings),
        rng=random.Random(),  # noqa: S311 - it spreads retries
        observer=observer,
    )


def _dialect(settings: Settings) -> Dialect:
    """Return how the judge is spoken to."""
    judge = settings.judge
    if judge.backend == "responses":
        return Responses(settings.genrm_responses_create_params)
    template = None
    if judge.template is not None:
        template = JudgeTemplate.load(judge.template, settings.score_range, settings.ranking_range)
    return Chat(settings.genrm_responses_create_params, template, schema=judge.json_schema)


def _addresses(judge: JudgeSettings) -> list[JudgeEndpoint]:
    """Return the panel; one address is a panel of one. A key or model of the section serves whoever has none."""
    if judge.panel:
        return [
            at.model_copy(update={"api_key": at.api_key or judge.api_key, "model": at.model or judge.model})
            for at in judge.panel
        ]
    assert judge.base_url is not None, "start-up refuses a judge without an address"
    return [JudgeEndpoint(base_url=judge.base_url, api_key=judge.api_key, model=judge.model)]


def _endpoint(at: JudgeEndpoint) -> Endpoint:
    return Endpoint(Address(at.base_url, _clear(at.api_key), at.model, at.weight))


def _clear(secret: SecretStr | None) -> str | None:
    """Return a secret in clear, for whoever signs or compares with it."""
    return secret.get_secret_value() if secret is not None else None
