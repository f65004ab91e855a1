"""The bodies of the control plane's calls (contract 10.2), as models that refuse what they do not know.

They hold no rule beyond the shape; what a call may do is the phase machine's. Numbers and texts are taken as
they are: no string becomes a number, no number a string.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import trio
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, StringConstraints

from genrm_trio.checkpoints.collector import collector_paused
from genrm_trio.core.identity import EpisodeId, parse_capture_key

INLINE_BYTES = 65_536
"""A longer body is read in a thread: tens of thousands of episodes take tenths of a second."""

MAX_EPISODES = 1_048_576
"""Most elements of a list in one call, as many as a checkpoint may have records."""

CheckpointId = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\z")
]


class NotAllowed(ValueError):
    """A value that has not the shape it must have; becomes an entry of the validation's error list."""


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise NotAllowed("must be finite")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotAllowed("must be a number")
    try:
        return float(value)
    except OverflowError:
        raise NotAllowed("must be finite") from None


def _episode(value: Any) -> EpisodeId:
    """An episode object or a capture key, as an EpisodeId; raises ValueError."""
    if isinstance(value, EpisodeId):
        return value
    if isinstance(value, str):
        return parse_capture_key(value)
    if not isinstance(value, dict):
        raise NotAllowed("must be an episode object or a key string")
    if unknown := sorted(str(key)[:80] for key in value.keys() - {"rollout_id", "attempt"}):
        raise NotAllowed(f"an episode has no {unknown[0]!r}")
    rollout, attempt = value.get("rollout_id"), value.get("attempt", 0)
    if not isinstance(rollout, str) or not rollout:
        raise NotAllowed("rollout_id must be a string that is not empty")
    if isinstance(attempt, bool) or not isinstance(attempt, int):
        raise NotAllowed("attempt must be an integer")
    return EpisodeId(rollout, attempt)


DeadlineTs = Annotated[float, BeforeValidator(_number), AfterValidator(_finite)]
Episode = Annotated[EpisodeId, BeforeValidator(_episode)]


class Call(BaseModel):
    """What every call carries. `deadline_ts`: Unix seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    checkpoint_id: CheckpointId
    deadline_ts: DeadlineTs


class PrepareCall(Call):
    """Close admission and wait until nothing is in flight."""


class RenewCall(Call):
    """Keep the checkpoint open for longer."""


class ResumeCall(Call):
    """Open admission again; also the abort."""


class CommitCall(Call):
    """Write a checkpoint. `episode_ids`: whose sessions, None for all. `stop`: the process will not go on."""

    _scope: frozenset[EpisodeId] | None = PrivateAttr(default=None)

    checkpoint_dir: Annotated[str, Field(min_length=1)]
    episode_ids: Annotated[list[Episode], Field(max_length=MAX_EPISODES)] | None = None
    stop: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """Make the set here, where a long list is read: perhaps in a thread."""
        self._scope = None if self.episode_ids is None else frozenset(self.episode_ids)

    @property
    def scope(self) -> frozenset[EpisodeId] | None:
        """The episodes as a set; None for all."""
        return self._scope


class RestoreCall(Call):
    """Install a checkpoint. `episode_ids`: the attempts that were saved."""

    _scope: frozenset[EpisodeId] = PrivateAttr(default=frozenset())

    checkpoint_dir: Annotated[str, Field(min_length=1)]
    episode_ids: Annotated[list[Episode], Field(max_length=MAX_EPISODES)]

    def model_post_init(self, context: Any, /) -> None:
        """Make the set here, where a long list is read: perhaps in a thread."""
        self._scope = frozenset(self.episode_ids)

    @property
    def scope(self) -> frozenset[EpisodeId]:
        """The episodes as a set."""
        return self._scope


class RetireCall(Call):
    """Refuse these attempts from now on."""

    _keys: list[str] = PrivateAttr(default_factory=list)
    _newest: dict[str, int] = PrivateAttr(default_factory=dict)

    episode_ids: Annotated[list[Episode], Field(min_length=1, max_length=MAX_EPISODES)]

    def model_post_init(self, context: Any, /) -> None:
        """Make keys and look for the newest attempts here, where a long list is read: perhaps in a thread."""
        self._keys = [episode.key for episode in self.episode_ids]
        newest: dict[str, int] = {}
        for episode in self.episode_ids:
            newest[episode.rollout_id] = max(episode.attempt, newest.get(episode.rollout_id, 0))
        self._newest = newest

    @property
    def keys(self) -> Sequence[str]:
        """The capture keys of the episodes, as they were listed."""
        return self._keys

    @property
    def newest(self) -> Mapping[str, int]:
        """The newest attempt that is retired of each rollout."""
        return self._newest


class ForgetCall(Call):
    """Drop the marks of retired rollouts."""

    rollout_ids: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_EPISODES)]


AnyCall = TypeVar("AnyCall", bound=Call)


async def read_call(model: type[AnyCall], body: bytes) -> AnyCall:
    """Read a call's body, off the event loop when it is long. Raises pydantic's ValidationError.

    Its thread is none of Trio's shared ones: look-ups of a judge's name that hang may hold all of those.
    """
    if len(body) <= INLINE_BYTES:
        return model.model_validate_json(body)
    with collector_paused():
        return await trio.to_thread.run_sync(model.model_validate_json, body, limiter=trio.CapacityLimiter(1))
