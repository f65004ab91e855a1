"""Combinations of settings that the server does not start with, each with the sentence that says why.

One function a rule, every rule in `RULES`. A rule reads settings and, where it must, looks whether a file is
there; it changes nothing.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from genrm_trio.judging.files import refuse_device
from genrm_trio.judging.pairs import all_pairs, comparisons, pairs
from genrm_trio.judging.rating import comparison_graph_connected
from genrm_trio.ops.settings import Settings

INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CONNECTIONS_BESIDE_HELD = 256
"""Connections that must be left when every held member has one: other routes, probes, the controller."""

Rule: TypeAlias = Callable[[Settings], str | None]


def judges_cohorts(settings: Settings) -> bool:
    """Tell whether members wait for each other, so that they must reach the same process."""
    return settings.num_rollouts_per_prompt > 1 or settings.comparison_mode == "fixed_baseline"


def judge_never_asked(settings: Settings) -> str | None:
    """Say what a cohort of one means. Allowed (contract 5.2), but seldom meant: N was forgotten."""
    if judges_cohorts(settings):
        return None
    return (
        f"num_rollouts_per_prompt is 1, so every reward is default_score ({settings.default_score:g}) and the judge is "
        "NEVER ASKED: set it to the number of rollouts of one prompt"
    )


def one_worker(settings: Settings) -> str | None:
    """A cohort lives in one process (contract 1)."""
    if (settings.num_workers or 1) > 1 and judges_cohorts(settings):
        return (
            f"num_workers is {settings.num_workers}, but the members of a cohort must meet in one process: "
            "set it to 1 (one process serves thousands of members)"
        )
    return None


def instance_name(settings: Settings) -> str | None:
    """The name is a folder of every checkpoint and the start of the cookie's name (contract 10.8, 13)."""
    if INSTANCE.fullmatch(settings.name) is None:
        return f"name is {settings.name!r}, but it must match [A-Za-z0-9][A-Za-z0-9._-]*"
    return None


def checkpoint_token(settings: Settings) -> str | None:
    """Control routes without a token would let anyone stop training (contract 10)."""
    if settings.checkpoint.enabled and settings.checkpoint.control_auth_token is None:
        return "checkpoint.enabled is true, but checkpoint.control_auth_token is not set"
    return None


def checkpoint_secret(settings: Settings) -> str | None:
    """A fresh process has to accept the cookies of the one that crashed (contract 3.1)."""
    if settings.checkpoint.enabled and settings.session_secret is None:
        return (
            "checkpoint.enabled is true, but session_secret is not set: after a restore the new process must "
            "accept the session cookies of the old one"
        )
    return None


def connection_bound(settings: Settings) -> str | None:
    """Held members must not use up the connections (contract 14.15)."""
    least = settings.max_held_members + CONNECTIONS_BESIDE_HELD
    if settings.max_connections < least:
        return (
            f"max_connections is {settings.max_connections}, but with max_held_members {settings.max_held_members} "
            f"it must be at least {least}"
        )
    return None


def held_bound(settings: Settings) -> str | None:
    """A cohort takes all its places at once (contract 14.15)."""
    if settings.max_held_members < settings.num_rollouts_per_prompt:
        return (
            f"max_held_members is {settings.max_held_members}: not even one cohort of "
            f"num_rollouts_per_prompt {settings.num_rollouts_per_prompt} fits"
        )
    return None


def judge_address(settings: Settings) -> str | None:
    """A judge that is called needs an address; both ways to give one are named (contract 13)."""
    judge = settings.judge
    if judge.backend == "recorded" or judge.base_url is not None or judge.panel:
        return None
    named = settings.genrm_model_server.name if settings.genrm_model_server else None
    looked = f" (genrm_model_server names {named!r}, which has no host and port there)" if named else ""
    return (
        f"the judge has no address{looked}: set judge.base_url, or name the judge in genrm_model_server and start "
        "with Gym's configuration in NEMO_GYM_CONFIG_DICT"
    )


def one_address(settings: Settings) -> str | None:
    """An address beside a panel would be silently left out."""
    if settings.judge.base_url is not None and settings.judge.panel:
        return "judge.base_url and judge.panel are both set: put every endpoint into the panel"
    return None


def recording(settings: Settings) -> str | None:
    """The recorded judge is never a silent default (contract 13)."""
    judge = settings.judge
    if judge.backend != "recorded":
        return "judge.recording is only for judge.backend recorded" if judge.recording is not None else None
    if judge.recording is None:
        return "judge.backend is recorded, but judge.recording names no file"
    return _unreadable("judge.recording", judge.recording)


def template(settings: Settings) -> str | None:
    """A template that no backend reads is a mistake."""
    path = settings.judge.template
    if path is None:
        return None
    if settings.judge.backend != "chat":
        return "judge.template is only for judge.backend chat"
    return _unreadable("judge.template", path)


def _unreadable(field: str, path: Path) -> str | None:
    """Say why a file cannot be read, if it cannot."""
    try:
        with path.open("rb") as file:
            refuse_device(file, path)
            return None
    except OSError as error:
        return f"{field} {str(path)!r} cannot be read: {error.strerror}"


def ranges(settings: Settings) -> str | None:
    """A range with nothing in it would refuse every verdict."""
    for field in ("score_range", "ranking_range"):
        low, high = getattr(settings, field)
        if low >= high:
            return f"{field} is [{low:g}, {high:g}]: the first must be below the second"
    return None


def comparisons_per_member(settings: Settings) -> int:
    """Return how many comparisons a member takes part in when every verdict is usable (contract 7.6, 7.11, 14.3)."""
    judges, members = settings.num_judges_per_comparison, settings.num_rollouts_per_prompt
    if settings.comparison_mode == "fixed_baseline":
        return judges
    partners = 2 if settings.comparison_strategy == "circular" else members - 1
    return partners * judges * (2 if settings.pair_order == "both" else 1)


def comparison_bound(settings: Settings) -> str | None:
    """A cohort that may not be judged would fail each time, after all its members have come."""
    members, judges = settings.num_rollouts_per_prompt, settings.num_judges_per_comparison
    planned = comparisons(settings.comparison_strategy, members, judges, settings.pair_order)
    if settings.comparison_mode == "fixed_baseline":
        planned = members * judges
    if planned > settings.max_comparisons:
        return (
            f"max_comparisons is {settings.max_comparisons}, but a cohort of num_rollouts_per_prompt {members} takes "
            f"{planned} comparisons with comparison_mode {settings.comparison_mode}, comparison_strategy "
            f"{settings.comparison_strategy}, pair_order {settings.pair_order} and num_judges_per_comparison {judges}"
        )
    if settings.aggregator_method == "bradley_terry" and (fitted := all_pairs(members)) > settings.max_comparisons:
        return (
            f"max_comparisons is {settings.max_comparisons}, but aggregator_method bradley_terry fits {fitted} "
            f"pairs of num_rollouts_per_prompt {members}"
        )
    return None


def reachable_minimum(settings: Settings) -> str | None:
    """With a minimum that no member can reach, every cohort would fail."""
    most = comparisons_per_member(settings)
    if judges_cohorts(settings) and settings.min_comparisons > most:
        return f"min_comparisons is {settings.min_comparisons}, but a member has only {most} comparisons"
    return None


def linked_comparisons(settings: Settings) -> str | None:
    """Strengths cannot be told of members that no chain of comparisons links (contract 12, `bradley_terry`)."""
    members = settings.num_rollouts_per_prompt
    if settings.aggregator_method != "bradley_terry" or members < 2 or settings.comparison_mode == "fixed_baseline":
        return None
    if settings.comparison_strategy == "all_pairs":  # they link everybody, and are too many to list for a large group
        return None
    if comparison_graph_connected(pairs(settings.comparison_strategy, members), members):
        return None
    return (
        f"aggregator_method bradley_terry needs comparisons that link all {members} members, but comparison_strategy "
        f"{settings.comparison_strategy} leaves some apart"
    )


def grace(settings: Settings) -> str | None:
    """What is kept back for the end of a shutdown must leave some of it."""
    if settings.limits.shutdown_reserve_s >= settings.shutdown_grace_s:
        return (
            f"limits.shutdown_reserve_s is {settings.limits.shutdown_reserve_s:g}: it must be below "
            f"shutdown_grace_s, {settings.shutdown_grace_s:g}"
        )
    return None


RULES: tuple[Rule, ...] = (
    one_worker,
    instance_name,
    checkpoint_token,
    checkpoint_secret,
    connection_bound,
    held_bound,
    judge_address,
    one_address,
    recording,
    template,
    ranges,
    comparison_bound,
    reachable_minimum,
    linked_comparisons,
    grace,
)


def refusals(settings: Settings) -> list[str]:
    """Return one sentence for each rule that the settings break."""
    return [said for rule in RULES if (said := rule(settings)) is not None]
