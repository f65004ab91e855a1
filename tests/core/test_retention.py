"""Who goes by age and by count, who stays for a session that needs it, and what that costs.

Contract 6.1, 11.6 and 14.14.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.core.play import PROMPT, SCHEME, Play, key_of

from genrm_trio.core.cohort import Answer, Cohort, NotEnabled
from genrm_trio.core.identity import EpisodeId, group_cohort_id
from genrm_trio.core.outcome import JudgeFailed, Rewarded
from genrm_trio.core.registry import Registry, Submission
from genrm_trio.core.state import Limits


def unrecorded(*, cohort_result_ttl_s: float | None = 3600.0, max_terminal_cohorts: int = 4096) -> Play:
    """A registry without checkpoints: nothing is needed, only age and count decide."""
    return Play(limits=Limits(2, max_terminal_cohorts, cohort_result_ttl_s))


def complete(play: Play, *groups: str, attempt: int = 0) -> None:
    for group in groups:
        play.fill_without_sessions(group, attempt=attempt)
        play.finish(group, attempt=attempt)


# -- age -----------------------------------------------------------------------------------------------


def test_a_finished_cohort_goes_when_its_age_reaches_the_ttl() -> None:
    play = unrecorded(cohort_result_ttl_s=10.0)
    complete(play, "g")
    play.prune(9.999)
    assert play.retained
    play.prune(0.001)
    assert not play.retained
    assert not play.registry.groups, "the watermark was last used as long ago"


def test_age_counts_from_the_end_and_a_replay_does_not_refresh_it() -> None:
    play = unrecorded(cohort_result_ttl_s=10.0)
    play.fill_without_sessions()
    play.now += 100.0
    play.finish()
    play.prune(9.0)
    assert play.verify(0).reward == 1.0
    play.prune(1.0)
    assert not play.retained
    assert play.registry.latest_attempt("g") == 0, "the replay refreshed the watermark"
    play.prune(9.0)
    assert not play.registry.groups


def test_active_cohorts_never_go_by_age() -> None:
    play = unrecorded(cohort_result_ttl_s=10.0)
    play.verify(0, group="collecting")
    play.fill_without_sessions("evaluating")
    play.fill_without_sessions("held")
    play.judge("held")
    play.prune(10.0**6)
    assert len(play.retained) == 3
    assert len(play.registry.groups) == 3
    for key in play.retained:
        with pytest.raises(NotEnabled):
            play.registry.expire(play.now, key)


def test_a_null_ttl_turns_only_the_age_rule_off() -> None:
    play = unrecorded(cohort_result_ttl_s=None, max_terminal_cohorts=1)
    complete(play, "a", "b")
    play.prune(10.0**9)
    assert play.retained == {key_of("a"), key_of("b")}
    play.verify(0, group="c")
    assert key_of("a") not in play.retained


def test_a_failed_cohort_without_a_group_id_goes_by_age_too() -> None:
    play = unrecorded(cohort_result_ttl_s=10.0)
    play.verify(0, group=None)
    play.registry.expire_collection(play.now, next(iter(play.retained)))
    play.prune(10.0)
    assert not play.retained


def test_after_eviction_the_same_request_starts_a_new_cohort() -> None:
    play = unrecorded(cohort_result_ttl_s=10.0)
    complete(play, "g", attempt=2)
    play.now += 5.0
    play.verify(0, attempt=2)
    play.prune(5.0)
    assert not play.retained
    assert play.verify(0, attempt=1).code == "superseded", "the watermark is still there"
    assert play.verify(0, attempt=2, answer="another").waits


def test_what_is_due_is_read_oldest_first() -> None:
    play = unrecorded(cohort_result_ttl_s=10.0)
    for group in ("b", "a", "c"):
        complete(play, group)
        play.now += 1.0
    assert play.registry.due_cohorts(play.now + 8.0) == [key_of("b"), key_of("a")]
    play.verify(0, group="b")
    assert play.registry.due_watermarks(play.now + 10.0**6) == []
    play.now += 20.0
    for key in play.registry.due_cohorts(play.now):
        play.registry.expire(play.now, key)
    assert play.registry.due_watermarks(play.now) == ["a", "c", "b"], "least recently used first"


# -- count ---------------------------------------------------------------------------------------------


def test_the_oldest_beyond_the_cap_go_before_the_next_verify_is_taken() -> None:
    play = unrecorded(max_terminal_cohorts=2)
    complete(play, "b", "a", "c")
    assert len(play.retained) == 3, "one above the cap may exist between verifications"
    ask = play.verify(0, group="b")
    assert ask.waits, "its own cohort was the oldest, so it starts a new one"
    assert play.retained == {key_of("a"), key_of("c"), key_of("b")}
    assert play.events[-1].reply == {"reply": {"waits": True}, "evicted": [key_of("b")], "superseded": []}


def test_the_cap_holds_for_requests_that_are_refused_as_well() -> None:
    play = unrecorded(max_terminal_cohorts=1)
    complete(play, "a", "b")
    assert play.verify(0, group="b", prompt="ef" * 32).code == "inconsistent_prompt"
    assert play.retained == {key_of("b")}


def test_active_cohorts_neither_count_nor_go_by_count() -> None:
    play = unrecorded(max_terminal_cohorts=1)
    for group in ("u", "v", "w"):
        play.verify(0, group=group)
    complete(play, "a", "b")
    play.verify(1, group="u")
    assert play.retained == {key_of(group) for group in ("u", "v", "w", "b")}


def test_needed_cohorts_go_beyond_the_cap_only_when_they_would_be_evicted() -> None:
    play = Play(max_terminal_cohorts=2)
    play.done("old")
    complete(play, "x", "y")
    play.done("new")
    complete(play, "z")
    play.verify(0, group="other")
    assert play.retained == {key_of("old"), key_of("new"), key_of("z"), key_of("other")}, (
        "the newest two stay, needed or not; of the others only the needed one"
    )


def test_of_needed_cohorts_only_the_session_tables_view_counts() -> None:
    play = Play(max_terminal_cohorts=1)
    play.done("a")
    play.done("b")
    play.registry.end_session(play.now, "s-a-0", "close")
    play.verify(0, group="x")
    assert key_of("a") in play.retained, "the other member's session is open"
    play.registry.end_session(play.now, "s-a-1", "close")
    play.verify(1, group="y")
    assert key_of("a") not in play.retained, "the member list alone is not enough"


# -- watermarks ----------------------------------------------------------------------------------------


def test_a_retained_cohort_keeps_its_watermark_whatever_its_age() -> None:
    play = Play(cohort_result_ttl_s=10.0)
    play.done()
    play.prune(10.0**5)
    assert play.retained == {key_of()}
    assert play.registry.latest_attempt("g") == 0
    with pytest.raises(NotEnabled):
        play.registry.expire_watermark(play.now, "g")
    assert play.verify(0, session="s-g-0").reward == 1.0


def test_watermarks_beyond_the_cap_go_least_recently_used_first() -> None:
    play = unrecorded(max_terminal_cohorts=3, cohort_result_ttl_s=10.0)
    complete(play, "a", "b", "c")
    play.now += 5.0
    assert play.verify(0, group="a").reward, "a replay is a use"
    play.now += 5.0
    for key in play.registry.due_cohorts(play.now):
        play.registry.expire(play.now, key)
    assert [name for _, name in play.registry.idle] == ["b", "c", "a"]
    play.verify(0, group="d")
    assert set(play.registry.groups) == {"a", "b", "c", "d"}
    play.verify(0, group="e")
    assert set(play.registry.groups) == {"a", "c", "d", "e"}, "one above the cap until the next verify"


def test_watermarks_of_retained_cohorts_never_go_by_count() -> None:
    play = unrecorded(max_terminal_cohorts=1)
    for group in ("a", "b", "c", "d"):
        play.verify(0, group=group)
    assert set(play.registry.groups) == {"a", "b", "c", "d"}
    play = Play(max_terminal_cohorts=1)
    for group in ("a", "b", "c"):
        play.done(group)
    play.join(0, group="d")
    assert set(play.registry.groups) == {"a", "b", "c", "d"}


# -- the keep rule: contract 11.6 ----------------------------------------------------------------------


@pytest.mark.parametrize("judged", [True, False], ids=["reward", "judge failure"])
def test_a_finished_cohort_survives_age_and_count_while_a_session_is_open(judged: bool) -> None:
    play = Play(cohort_result_ttl_s=0.01, max_terminal_cohorts=1)
    first = play.fill("g")
    if judged:
        play.judge("g")
    else:
        play.judge_fails("g")
    play.publish("g")
    for group in ("h", "i", "j"):
        play.done(group)
        play.registry.end_session(play.now, f"s-{group}-0", "close")
        play.registry.end_session(play.now, f"s-{group}-1", "close")
        play.prune(1.0)
    assert play.retained == {key_of("g")}
    again = play.verify(1, session="s-g-1", episode="g-1")
    assert again.answer == first[1].answer
    assert isinstance(again.answer, Rewarded if judged else JudgeFailed)
    for session in ("s-g-0", "s-g-1"):
        play.registry.end_session(play.now, session, "close")
    play.prune()
    assert not play.retained


@pytest.mark.parametrize("ends", ["close", "verify", "retire", "idle"])
def test_once_its_sessions_ended_it_is_an_ordinary_tombstone(ends: str) -> None:
    play = Play(cohort_result_ttl_s=10.0, session_idle_ttl_s=100.0)
    play.done()
    play.prune(20.0)
    assert play.retained
    if ends == "retire":
        play.retire("g-0", "g-1")
    elif ends == "idle":
        play.now += 100.0
    else:
        for session in ("s-g-0", "s-g-1"):
            play.registry.end_session(play.now, session, "verify" if ends == "verify" else "close")
    play.prune()
    assert not play.retained
    assert not play.registry.groups


def test_a_needed_cohort_cannot_be_expired() -> None:
    play = Play()
    play.done()
    with pytest.raises(NotEnabled):
        play.registry.expire(play.now, key_of())


def test_without_checkpoints_nothing_is_kept_for_a_session() -> None:
    play = unrecorded(cohort_result_ttl_s=10.0)
    assert play.seed("s-g-0", "g-0") == "unbound"
    complete(play, "g")
    play.verify(0, session="s-g-0", episode="g-0")
    assert not len(play.registry.sessions)
    play.prune(10.0)
    assert not play.retained


# -- cost ----------------------------------------------------------------------------------------------


class Counted(OrderedDict[str, Any]):
    """A dictionary that counts how many entries are touched."""

    touched = Counter[str]()

    def __getitem__(self, key: str) -> Any:
        self.touched["entries"] += 1
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.touched["entries"] += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.touched["entries"] += 1
        return super().__contains__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.touched["entries"] += 1
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.touched["entries"] += 1
            yield key

    def values(self) -> Any:
        return (super(Counted, self).__getitem__(key) for key in self)

    def items(self) -> Any:
        return ((key, super(Counted, self).__getitem__(key)) for key in self)


class Watched(Registry):
    """A registry that counts the entries it touches and how often it asks whether a cohort is needed."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.cohorts = Counted()
        self.terminal = Counted()
        self.groups = Counted()
        self.sessions._open = Counted()
        Counted.touched.clear()

    def needed(self, cohort: Cohort) -> bool:
        Counted.touched["needed"] += 1
        return super().needed(cohort)

    def play(self, group: str, *, open_sessions: bool = False) -> Counter[str]:
        """Run a cohort from its first member to its replays; returns what that touched."""
        Counted.touched.clear()
        cohort, size = group_cohort_id(group, 0), self.limits.cohort_size
        for index in [*range(size), 0]:
            session, episode = f"{group}-{index}", EpisodeId(f"{group}-{index}")
            if open_sessions and self.limits.record_sessions:
                self.seed(1.0, session, episode, binds=True)
            self.prune(1.0)
            answer = Answer({SCHEME: f"answer {index}"})
            self.submit(1.0, Submission(index, cohort, index, PROMPT, answer, session, episode))
            if len(self.cohorts[cohort.key].members) == size and index == size - 1:
                self.judged(1.0, cohort.key, [Rewarded({"reward": float(i)}) for i in range(size)])
                self.publish(1.0, cohort.key)
        return Counter(Counted.touched)


@pytest.mark.parametrize("open_sessions", [False, True], ids=["tombstones", "needed"])
def test_a_verify_touches_as_many_entries_with_4096_retained_cohorts_as_with_none(open_sessions: bool) -> None:
    limits = Limits(16, max_terminal_cohorts=5000, record_sessions=open_sessions)
    empty = Watched(limits).play("probe", open_sessions=open_sessions)
    full = Watched(limits)
    full.play("first", open_sessions=open_sessions)
    one = full.play("second", open_sessions=open_sessions)
    for number in range(4094):
        full.play(f"g{number}", open_sessions=open_sessions)
    assert len(full.terminal) == 4096
    touched = full.play("probe", open_sessions=open_sessions)
    assert touched == one
    assert touched["entries"] - empty["entries"] <= 2 * 17, "a look at the oldest, per verify"
    assert touched["needed"] == 0


def test_at_the_cap_it_touches_only_what_goes() -> None:
    touched = []
    for cap in (100, 1000):
        full = Watched(Limits(4, max_terminal_cohorts=cap))
        for number in range(cap):
            full.play(f"g{number}")
        touched.append(full.play("probe"))
        assert len(full.terminal) == cap
        assert touched[-1]["needed"] == 1, "its replay finds one above the cap"
    assert touched[0] == touched[1]


def test_an_age_check_touches_only_what_is_due() -> None:
    full = Watched(Limits(2, cohort_result_ttl_s=10.0))
    for number in range(200):
        full.play(f"g{number}")
    Counted.touched.clear()
    assert full.due_cohorts(10.9) == full.due_watermarks(10.9) == full.due_sessions(10.9) == []
    assert Counted.touched["entries"] <= 4
    assert Counted.touched["needed"] == 0
