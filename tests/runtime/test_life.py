"""The life of a cohort under virtual time: rewards, deadlines, failures, disconnects, supersession, early judging."""

import gc

import pytest
import trio
import trio.testing
from tests.support.judges import ScriptedJudge, by_number, failing
from tests.support.scene import policy, scene

from genrm_trio.core.cohort import Phase
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Refused
from genrm_trio.judging.judge import Ask, JudgeError
from genrm_trio.judging.verdict import Verdict
from genrm_trio.runtime.evaluation import Contender, Evaluation

KEY = "group_id::g::group_attempt::0"


async def test_each_member_gets_its_own_reward_whatever_the_order_of_arrival(autojump_clock: trio.abc.Clock) -> None:
    async with scene(policy(4)) as s:
        rollouts = {index: s.verify(index) for index in (2, 0, 3)}
        await s.waiting(3)
        assert not s.judge.asks, "nothing is judged before all members are there"
        rollouts[1] = s.verify(1)
        await s.ended(*rollouts.values())
        assert [rollouts[i].reward for i in range(4)] == [1.0, 2.0, 3.0, 4.0]
        assert sorted(ask.pair for ask in s.judge.asks) == [(0, 1), (1, 2), (2, 3), (3, 0)]


async def test_a_retry_waits_with_the_others_and_is_told_again_without_a_judge_call(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene() as s:
        first, again, other = s.verify(0), s.verify(0), s.verify(1)
        await s.ended(first, again, other)
        assert (first.reward, again.reward, other.reward) == (1.0, 1.0, 2.0)
        calls = len(s.judge.asks)
        late = s.verify(0)
        await s.ended(late)
        assert late.reward == 1.0
        assert len(s.judge.asks) == calls


async def test_the_collection_deadline_counts_from_the_first_member_and_runs_without_waiters(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene(policy(3)) as s:
        first = s.verify(0)
        await s.waiting(1)
        await trio.sleep(20)
        again = s.verify(0)
        await s.waiting(2)
        first.scope.cancel()
        again.scope.cancel()
        await s.ended(first, again)
        await trio.sleep(9.5)
        assert s.server.registry.cohorts[KEY].phase is Phase.COLLECTING
        await trio.sleep(1)
        assert s.server.registry.cohorts[KEY].phase is Phase.FAILED
        late = s.verify(1)
        await s.ended(late)
        assert "did not collect 3 unique rollout indices" in late.failure


@pytest.mark.parametrize("arrival_first", [True, False])
async def test_last_arrival_against_the_collection_deadline(
    arrival_first: bool, autojump_clock: trio.abc.Clock
) -> None:
    async with scene() as s:
        s.points.block("collected")
        first = s.verify(0)
        await s.points.parked("collected")  # the deadline has passed, and was not yet reported
        if not arrival_first:
            s.points.release("collected")
            await s.ended(first)
        last = s.verify(1)
        if arrival_first:
            await s.waiting(2)
            s.points.release("collected")
        await s.ended(first, last)
        if arrival_first:
            assert (first.reward, last.reward) == (1.0, 2.0)
        else:
            assert isinstance(last.answer, CohortFailed)
            assert last.answer == first.answer


async def test_the_evaluation_deadline_is_a_judge_failure_and_counts_from_the_first_slot(
    autojump_clock: trio.abc.Clock,
) -> None:
    rules = policy(2, max_concurrency=2)
    async with scene(rules, ScriptedJudge(is_open=False)) as s:
        start = trio.current_time()
        blocking = [s.verify(i, group="a") for i in range(2)]
        await s.judge.asked(2)
        await trio.sleep(50)
        behind = [s.verify(i, group="b") for i in range(2)]
        await s.ended(*blocking)
        assert trio.current_time() - start == pytest.approx(60)
        await s.ended(*behind)
        assert trio.current_time() - start == pytest.approx(120), "its first call got its slot at 60 s"
        for rollout in blocking + behind:
            assert isinstance(rollout.answer, JudgeFailed)
            assert "evaluation deadline" in rollout.failure


@pytest.mark.parametrize("deadline_first", [True, False])
async def test_the_verdict_against_the_evaluation_deadline(
    deadline_first: bool, autojump_clock: trio.abc.Clock
) -> None:
    async with scene(judge=ScriptedJudge(is_open=False)) as s:
        s.points.block("judged")
        rollouts = [s.verify(i) for i in range(2)]
        await s.judge.asked(2)
        if not deadline_first:
            s.judge.open()
        await s.points.parked("judged")
        s.judge.open()
        await trio.sleep(120)
        s.points.release("judged")
        await s.ended(*rollouts)
        if deadline_first:
            assert isinstance(rollouts[0].answer, JudgeFailed)
        else:
            assert [r.reward for r in rollouts] == [1.0, 2.0], "a verdict before the deadline's report counts"


async def test_a_defect_that_comes_with_a_cancellation_from_outside_ends_no_server(
    autojump_clock: trio.abc.Clock,
) -> None:
    class BreaksWhenCancelled(ScriptedJudge):
        async def compare(self, ask: Ask, slot: object) -> object:  # type: ignore[override]
            try:
                return await super().compare(ask, slot)  # type: ignore[arg-type]
            except trio.Cancelled:
                if ask.pair == (0, 1):
                    raise ZeroDivisionError("a defect in the judge") from None
                raise

    judge = BreaksWhenCancelled(is_open=False)
    async with scene(policy(3), judge) as s:
        for index in range(3):
            s.verify(index)
        await judge.asked(3)
    assert judge.cancelled == 3


async def test_a_judge_error_cancels_the_siblings_and_is_recorded(autojump_clock: trio.abc.Clock) -> None:
    def says(ask: Ask) -> Verdict | Exception:
        return JudgeError("no verdict")

    class OneFails(ScriptedJudge):
        async def compare(self, ask: Ask, slot: object) -> object:  # type: ignore[override]
            if ask.pair == (0, 1):
                await self.asked(2)
                raise JudgeError("no verdict")
            return await super().compare(ask, slot)  # type: ignore[arg-type]

    async with scene(policy(3), OneFails(says, is_open=False)) as s:
        rollouts = [s.verify(i) for i in range(3)]
        await s.ended(*rollouts)
        assert s.judge.cancelled == 2
        assert s.server.slots.in_use == 0
        assert {r.failure for r in rollouts} == {"no verdict"}
        regenerated = s.verify(1, "another answer")
        await s.ended(regenerated)
        assert isinstance(regenerated.answer, JudgeFailed), "the recorded failure comes before the answer is compared"
        assert len(s.judge.asks) == 2


async def test_an_unexpected_error_fails_its_cohort_and_nothing_else(autojump_clock: trio.abc.Clock) -> None:
    def says(ask: Ask) -> Verdict | Exception:
        return RuntimeError("x" * 3000) if ask.response_1.startswith("9") else by_number(ask)

    async with scene(judge=ScriptedJudge(says)) as s:
        broken = [s.verify(i, f"9{i}", group="broken") for i in range(2)]
        fine = [s.verify(i, group="fine") for i in range(2)]
        await s.ended(*broken, *fine)
        assert [r.reward for r in fine] == [1.0, 2.0]
        for rollout in broken:
            assert isinstance(rollout.answer, CohortFailed)
            assert rollout.answer.code == "evaluation_failed"
            assert "RuntimeError: " + "x" * 950 in rollout.failure
            assert len(rollout.failure) < 1200


async def test_a_disconnect_leaves_the_member_and_a_retry_attaches_again(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s:
        gone = s.verify(0)
        await s.waiting(1)
        gone.scope.cancel()
        await s.ended(gone)
        assert not s.server.registry.waiters
        changed = s.verify(0, "another answer")
        await s.ended(changed)
        assert isinstance(changed.answer, Refused)
        assert changed.answer.code == "different_response"
        back, other = s.verify(0), s.verify(1)
        await s.ended(back, other)
        assert (back.reward, other.reward) == (1.0, 2.0)


async def test_a_cohort_without_waiters_is_judged_to_its_end(autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=ScriptedJudge(is_open=False)) as s:
        gone = [s.verify(i) for i in range(2)]
        await s.judge.asked(2)
        for rollout in gone:
            rollout.scope.cancel()
        await s.ended(*gone)
        s.judge.open()
        await trio.testing.wait_all_tasks_blocked()
        assert s.server.registry.cohorts[KEY].phase is Phase.COMPLETED
        back = s.verify(1)
        await s.ended(back)
        assert back.reward == 2.0
        assert len(s.judge.asks) == 2


@pytest.mark.parametrize("publish_first", [True, False])
async def test_a_disconnect_against_the_publish(publish_first: bool, autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=ScriptedJudge(is_open=False)) as s:
        s.points.block("judged")
        s.points.block("answered")
        rollouts = [s.verify(i) for i in range(2)]
        await s.judge.asked(2)
        s.judge.open()
        await s.points.parked("judged")
        if not publish_first:
            rollouts[0].scope.cancel()
            await s.ended(rollouts[0])
        s.points.release("judged")
        await s.points.parked("answered", 2 if publish_first else 1)
        rollouts[0].scope.cancel()
        s.points.release("answered")
        await s.ended(*rollouts)
        assert rollouts[1].reward == 2.0
        assert not s.server.registry.waiters
        back = s.verify(0)
        await s.ended(back)
        assert back.reward == 1.0


@pytest.mark.parametrize("where", ["collecting", "evaluating", "held"])
async def test_a_higher_attempt_supersedes_an_active_one(where: str, autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=ScriptedJudge(is_open=False)) as s:
        old = [s.verify(i) for i in range(1 if where == "collecting" else 2)]
        await s.waiting(len(old))
        if where != "collecting":
            await s.judge.asked(2)
        if where == "held":
            s.server.close_admission()
            s.judge.open()
            await s.phase(KEY, Phase.HELD)
        new = s.verify(0, attempt=1)
        await s.ended(*old)
        for rollout in old:
            assert isinstance(rollout.answer, CohortFailed)
            assert rollout.answer.latest_attempt == 1
            assert "superseded by attempt 1" in rollout.failure
        await trio.testing.wait_all_tasks_blocked()
        assert s.judge.cancelled == (2 if where == "evaluating" else 0)
        assert s.server.slots.in_use == 0
        stale = s.verify(1)
        await s.ended(stale)
        assert isinstance(stale.answer, Refused)
        assert stale.answer.code == "superseded"
        if where == "held":
            s.server.open_admission(resumed=True)
        s.judge.open()
        other = s.verify(1, attempt=1)
        await s.ended(new, other)
        assert (new.reward, other.reward) == (1.0, 2.0)


async def test_a_completed_cohort_without_a_group_id_is_gone_and_a_failed_one_stays(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene(judge=failing()) as s:
        rollouts = [s.verify(i, group=None) for i in range(2)]
        await s.ended(*rollouts)
        assert "fresh _ng_group_id" in rollouts[0].failure
        assert len(s.server.registry.cohorts) == 1
    async with scene() as s:
        for _ in range(2):
            rollouts = [s.verify(i, group=None) for i in range(2)]
            await s.ended(*rollouts)
            assert [r.reward for r in rollouts] == [1.0, 2.0]
        assert not s.server.registry.cohorts
        assert len(s.judge.asks) == 4, "the same task is judged again"


async def test_pairs_are_judged_as_they_arrive_but_published_together(autojump_clock: trio.abc.Clock) -> None:
    async with scene(policy(3, judge_start="as_pairs_arrive")) as s:
        early = [s.verify(0), s.verify(1)]
        await s.judge.asked(1)
        await trio.testing.wait_all_tasks_blocked()
        assert [ask.pair for ask in s.judge.asks] == [(0, 1)]
        assert not any(r.ended for r in early)
        last = s.verify(2)
        await s.ended(*early, last)
        assert [r.reward for r in (*early, last)] == [1.0, 2.0, 3.0]
        assert len(s.judge.asks) == 3


async def test_an_early_judge_error_becomes_the_outcome_when_the_last_member_is_there(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene(policy(3, judge_start="as_pairs_arrive"), failing("early")) as s:
        early = [s.verify(0), s.verify(1)]
        await s.judge.asked(1)
        await trio.testing.wait_all_tasks_blocked()
        assert s.server.registry.cohorts[KEY].phase is Phase.COLLECTING
        last = s.verify(2)
        await s.ended(*early, last)
        assert last.failure == "early"


async def test_the_pair_of_a_freed_slot_is_judged_again(autojump_clock: trio.abc.Clock) -> None:
    async with scene(policy(3, judge_start="as_pairs_arrive")) as s:
        s.seed("s1", "r1")
        early = [s.verify(0), s.verify(1, "1", session="s1")]
        await s.judge.asked(1)
        await trio.testing.wait_all_tasks_blocked()
        s.server.registry.retire(s.server.now(), [s.server.registry.sessions.get("s1").episode])  # type: ignore[union-attr]
        await s.ended(early[1])
        again = s.verify(1, "5")
        await s.judge.asked(2)
        last = s.verify(2)
        await s.ended(early[0], again, last)
        assert [early[0].reward, again.reward, last.reward] == [1.0, 5.0, 3.0]
        assert len(s.judge.asks) == 4


async def test_the_evaluation_deadline_of_early_pairs_runs_from_the_last_arrival(
    autojump_clock: trio.abc.Clock,
) -> None:
    rules = policy(3, judge_start="as_pairs_arrive", collection_timeout_s=1000.0)
    async with scene(rules, ScriptedJudge(is_open=False)) as s:
        early = [s.verify(0), s.verify(1)]
        await s.judge.asked(1)
        await trio.sleep(500)
        start = trio.current_time()
        last = s.verify(2)
        await s.ended(*early, last)
        assert trio.current_time() - start == pytest.approx(60)
        assert isinstance(last.answer, JudgeFailed)


async def test_slots_go_to_cohorts_in_the_order_in_which_they_became_complete(autojump_clock: trio.abc.Clock) -> None:
    async with scene(policy(2, max_concurrency=1), ScriptedJudge(is_open=False)) as s:
        first = s.verify(0, group="first")
        await s.waiting(1)
        second = [s.verify(i, group="second") for i in range(2)]
        await s.judge.asked(1)
        third = s.verify(1, group="first")
        await s.waiting(4)
        s.judge.open()
        await s.ended(first, third, *second)
        assert len(s.judge.asks) == 4
        assert second[0].reward == 1.0


class Unspeakable(Exception):
    """An error that raises when it is told."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_a_defect_without_words_fails_its_cohort_like_any_other(autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=ScriptedJudge(lambda _ask: Unspeakable())) as s:
        rollouts = [s.verify(i) for i in range(2)]
        await s.ended(*rollouts)
        assert "Unspeakable: an error that raised RuntimeError when it was told" in rollouts[0].failure
        again = [s.verify(i, group="h") for i in range(2)]
        await s.ended(*again)
        assert "Unspeakable" in again[0].failure, "the server runs on"


async def test_shutting_down_answers_every_waiter_and_refuses_the_next(autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=ScriptedJudge(is_open=False)) as s:
        judged = [s.verify(i, group="judged") for i in range(2)]
        await s.judge.asked(2)
        collecting = s.verify(0, group="collecting")
        await s.waiting(3)
        s.server.shut_down()
        await s.ended(*judged, collecting)
        for rollout in (*judged, collecting):
            assert isinstance(rollout.answer, CohortFailed)
            assert rollout.answer.code == "shutting_down"
        await trio.testing.wait_all_tasks_blocked()
        assert s.judge.cancelled == 2
        late = s.verify(0)
        await s.ended(late)
        assert isinstance(late.answer, Refused)
        assert late.answer.code == "shutting_down"


@pytest.mark.parametrize("ending", ["rewarded", "judge failed", "superseded"])
async def test_what_a_cohort_was_judged_by_goes_with_it_and_waits_for_no_collection(
    ending: str, autojump_clock: trio.abc.Clock
) -> None:
    judge = {"rewarded": ScriptedJudge(), "judge failed": failing(), "superseded": ScriptedJudge(is_open=False)}[ending]
    kinds = (Contender, Evaluation)
    async with scene(judge=judge) as s:
        others = {id(one) for one in gc.get_objects() if isinstance(one, kinds)}
        gc.disable()
        try:
            rollouts = [s.verify(0), s.verify(1)]
            if ending == "superseded":
                await s.judge.asked(2)
                rollouts.append(s.verify(0, attempt=1))
                await s.ended(*rollouts[:2])
                rollouts[2].scope.cancel()
                await trio.sleep(1000)  # the newer attempt's collection ends as well
            await s.ended(*rollouts)
            await trio.testing.wait_all_tasks_blocked()
            left = [one for one in gc.get_objects() if isinstance(one, kinds) and id(one) not in others]
        finally:
            gc.enable()
    assert not left
