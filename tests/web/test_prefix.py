"""The rollout prefix: taken off a raw path when it is one, and nothing else."""

import pytest

from genrm_trio.core.identity import MAX_PREFIX_ATTEMPT, EpisodeId, parse_capture_key
from genrm_trio.core.record import Rebuild
from genrm_trio.core.state import Limits
from genrm_trio.web.prefix import split_prefix


@pytest.mark.parametrize(
    ("path", "episode", "rest"),
    [
        (b"/ng-rollout/0-3/verify", EpisodeId("0-3"), b"/verify"),
        (b"/ng-rollout/r-a2/verify", EpisodeId("r", 2), b"/verify"),
        (b"/ng-rollout/r-a0/verify", EpisodeId("r-a0"), b"/verify"),
        (b"/ng-rollout/r-a01/seed_session", EpisodeId("r-a01"), b"/seed_session"),
        (b"/ng-rollout/r._-x/", EpisodeId("r._-x"), b"/"),
        (b"/ng-rollout/r-a1" + b"0" * 17 + b"/", EpisodeId("r", 10**17), b"/"),
        (b"/ng-rollout/r/ng-rollout/s/verify", EpisodeId("r"), b"/ng-rollout/s/verify"),
        (b"/ng-rollout/r//verify", EpisodeId("r"), b"//verify"),
        (b"/ng-rollout/r/%76erify", EpisodeId("r"), b"/%76erify"),
    ],
)
def test_a_prefix(path: bytes, episode: EpisodeId, rest: bytes) -> None:
    assert split_prefix(path) == (episode, rest)


@pytest.mark.parametrize(
    "path",
    [
        *(b"/verify", b"/", b"/ng-rollout", b"/ng-rollout/", b"/ng-rollout/r", b"/ng-rollout//verify"),
        *(b"/ng-rollout/-r/verify", b"/ng-rollout/.r/verify", b"/ng-rollout/a b/verify", b"/ng-rollout/a%20b/verify"),
        *(b"/ng-rollout/r\xc3\xa9/verify", b"/ng-rollout/r\n/verify", b"/x/ng-rollout/r/verify"),
        *(b"/NG-ROLLOUT/r/verify", b"/ng-rollout/r-a1-a2/verify"),
        *(b"/ng-rollout/r-a1" + b"0" * 16 + b"1/verify", b"/ng-rollout/r-a" + b"9" * 18 + b"/verify"),
        *(b"/ng-rollout/r-a1" + b"0" * 18 + b"/verify", b"/ng-rollout/r-a" + b"9" * 5000 + b"/verify"),
    ],
)
def test_what_does_not_match_is_routed_as_it_is(path: bytes) -> None:
    assert split_prefix(path) == (None, path)


def test_what_a_request_can_name_can_be_restored_again_and_again() -> None:
    episode, _ = split_prefix(f"/ng-rollout/r-a{MAX_PREFIX_ATTEMPT}/seed_session".encode())
    for _ in range(100):
        assert episode is not None
        named = parse_capture_key(episode.key)
        rebuild = Rebuild(Limits(2), 0.0)
        rebuild.add(named, "s", {})
        (session,) = rebuild.state.sessions
        assert session.episode == named.next
        episode = session.episode
