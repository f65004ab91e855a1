"""Rules of the source that are broken on purpose, and the tests that must notice.

Each mutant is one rule of the contract taken out. Those that the formal model has as well carry its name. `edits` are
exact fragments, each found exactly once in its file, and what replaces them. `tests` must all fail; with `--by machine`
the stateful test alone must find it, unless `machine` is False.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

REGISTRY = "core/registry.py"
STATE = "core/state.py"
RECORD = "core/record.py"
COHORT = "core/cohort.py"
SESSIONS = "core/sessions.py"

Edit = tuple[str, str, str]
T = TypeVar("T")


def part_of(listed: Sequence[T], which: str) -> Sequence[T]:
    """Every so-manieth, of `2/3` the second of each three: so that as many runs cover all of a table."""
    part, parts = (int(number) for number in which.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(f"{which}: there are parts 1 to {parts}")
    return listed[part - 1 :: parts]


@dataclass(frozen=True)
class Mutant:
    """One rule that is taken out.

    guards: what goes wrong for a client without it. edits: file below src/genrm_trio, fragment, replacement.
    breaks: invariants of the stateful test, each of which must find it alone (`--by invariant`).
    """

    name: str
    guards: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    machine: bool = True
    breaks: tuple[str, ...] = ()


def core(name: str, test: str, guards: str, *edits: Edit, machine: bool = True, breaks: str = "") -> Mutant:
    """A mutant of the core; `test` lists `file::test` below tests/core, `breaks` invariants, separated by spaces."""
    return Mutant(
        name, guards, edits, tuple(f"tests/core/{one}" for one in test.split()), machine, tuple(breaks.split())
    )


ATTEMPTS = (
    core(
        "NoSupersede",
        "test_verify_checks.py::test_8_a_higher_attempt_fails_every_active_older_one",
        "two attempts of a group are judged side by side, and the older one still rewards",
        (REGISTRY, "        for cohort in older:\n", "        for cohort in older[:0]:\n"),
        breaks="one_active_attempt",
    ),
    core(
        "StaleAccepted",
        "test_verify_checks.py::test_7_an_older_attempt_is_refused_and_told_the_newest",
        "a stray member of an old attempt starts a cohort that nobody completes",
        (REGISTRY, "        if sub.cohort.attempt < mark.attempt:\n", "        if sub.cohort.attempt < 0:\n"),
        breaks="active_has_watermark no_stale_attempt_publishes",
    ),
    core(
        "SupersedeLeavesWaiters",
        "test_verify_checks.py::test_8_a_higher_attempt_fails_every_active_older_one",
        "requests of a superseded attempt wait for ever",
        (
            REGISTRY,
            "        answered = self._answer_all(now, cohort)\n"
            "        self._terminate(now, cohort)\n        return answered\n",
            '        answered = self._answer_all(now, cohort) if step != "superseded" else []\n'
            "        self._terminate(now, cohort)\n        return answered\n",
        ),
    ),
    core(
        "PromptAfterStale",
        "test_verify_checks.py::test_6_comes_before_supersession_in_both_directions",
        "another prompt supersedes a group that is fine",
        (
            REGISTRY,
            "        if mark.prompt != sub.prompt:\n",
            "        if mark.prompt != sub.prompt and sub.cohort.attempt <= mark.attempt:\n",
        ),
        machine=False,
    ),
    core(
        "DigestIgnored",
        "test_verify_checks.py::test_11_a_taken_slot_refuses_another_answer_in_every_phase",
        "a regenerated answer gets the reward of the one before it",
        (COHORT, "        return answer.digests.get(self.scheme) == self.digest\n", "        return True\n"),
        breaks="own_outcome",
    ),
    core(
        "FailureAfterComparison",
        "test_verify_checks.py::test_10_a_failed_cohort_repeats_its_failure_before_the_answer_is_compared",
        "a caller with a regenerated answer hears of a conflict instead of the failure it must act on",
        (
            REGISTRY,
            "        if cohort.phase is Phase.FAILED:\n            return self._rejoin_failed",
            "        if cohort.phase is Phase.FAILED and (member is None or member.holds(sub.answer)):\n"
            "            return self._rejoin_failed",
        ),
        machine=False,
    ),
    core(
        "MembersByArrival",
        "test_verify_checks.py::test_14_members_are_added_and_the_last_one_starts_the_evaluation",
        "members get each other's rewards whenever they arrive out of order",
        (
            COHORT,
            "        return [self.members[i] for i in sorted(self.members)]\n",
            "        return list(self.members.values())\n",
        ),
        breaks="own_outcome",
    ),
)

ENDINGS = (
    core(
        "TermListStale",
        "test_retention.py::test_the_oldest_beyond_the_cap_go_before_the_next_verify_is_taken",
        "failed cohorts are never evicted",
        (
            STATE,
            "        self.terminal[cohort.id.key] = None\n        self.held -= cohort.size\n",
            "        self.held -= cohort.size\n",
        ),
        breaks="terminal_listed",
    ),
    core(
        "NoCollectTimeout",
        "test_outcomes.py::test_the_collection_deadline_fails_the_cohort_and_counts_what_came",
        "members wait for one that never comes",
        (
            REGISTRY,
            '        answered = self._fail(now, cohort, "expire_collection", failure)\n',
            "        answered: list[int] = [] if failure else []\n",
        ),
    ),
    core(
        "PerMemberKind",
        "test_outcomes.py::test_a_judge_failure_is_one_text_for_all_members_and_stays",
        "of a cohort that the judge failed one member is masked and another trains on a made-up reward",
        (
            COHORT,
            "        if self.failure is not None:\n            return self.failure\n"
            "        result = self.members[index].result\n",
            "        if self.failure is not None and not (isinstance(self.failure, JudgeFailed) and index == 1):\n"
            "            return self.failure\n"
            '        result = self.members[index].result or Rewarded({"reward": 0.0})\n',
        ),
        breaks="siblings_agree",
    ),
    core(
        "UngroupedNotPopped",
        "test_outcomes.py::test_a_completed_cohort_without_a_group_id_goes_at_publish",
        "the same task cannot be judged again",
        (
            REGISTRY,
            "        if rewarded and cohort.id.group is None:\n",
            "        if rewarded and cohort.id.group is not None and not cohort.members:\n",
        ),
        breaks="ungrouped_gone",
    ),
    core(
        "DisconnectTakesMember",
        "test_verify_checks.py::test_11_holds_when_nobody_waits",
        "a reconnecting client finds its slot free and its answer forgotten",
        (
            REGISTRY,
            "        if left:\n            self._remove_waiter(now, waiter)\n",
            "        if left:\n            found = self.cohorts[self.waiters[waiter].cohort]\n"
            "            index = found.waiters[waiter]\n            self._remove_waiter(now, waiter)\n"
            "            if found.phase is Phase.COLLECTING and not found.held_by(index):\n"
            "                self._drop_member(found, index)\n",
        ),
        machine=False,
    ),
    core(
        "BodiesKept",
        "test_outcomes.py::test_a_finished_cohort_keeps_no_bodies_and_no_waiters",
        "memory grows with every finished cohort's bodies",
        (
            REGISTRY,
            "            member.result = result\n            member.payload = None\n",
            "            member.result = result\n",
        ),
    ),
    core(
        "CloseKeepsSessions",
        "test_outcomes.py::test_shutdown_answers_every_waiter_and_leaves_nothing",
        "a server that shut down still holds sessions",
        (
            REGISTRY,
            "        self.sessions.clear()\n        self.cohorts.clear()\n",
            "        self.cohorts.clear()\n",
        ),
        breaks="closed_is_empty",
    ),
    core(
        "CloseKeepsCohorts",
        "test_outcomes.py::test_shutdown_answers_every_waiter_and_leaves_nothing",
        "a server that shut down still holds cohorts",
        (REGISTRY, "        self.cohorts.clear()\n        self.terminal.clear()\n", ""),
    ),
    core(
        "PlacesLeak",
        "test_bounds.py::test_places_come_back_however_a_cohort_ends",
        "after enough retired cohorts every new one is refused as too busy",
        (STATE, "        if cohort.active:\n            self.held -= cohort.size\n", ""),
    ),
    core(
        "BoundSplitsCohort",
        "test_bounds.py::test_the_first_member_takes_the_places_of_all_or_is_refused",
        "the last members of a cohort are refused while its first ones wait",
        (
            REGISTRY,
            "        if bound is None or sub.cohort.key in self.cohorts:\n",
            "        if bound is None or (sub.cohort.key in self.cohorts and self.held < bound - 1):\n",
        ),
        machine=False,
    ),
)

RETENTION = (
    core(
        "WatermarkNotKept",
        "test_retention.py::test_watermarks_of_retained_cohorts_never_go_by_count",
        "a superseded attempt is served again while its successor is retained",
        (
            STATE,
            "        names = [name for _, name in self.idle[: max(surplus, 0)]]\n        for name in names:\n"
            "            self._drop_watermark(name)\n",
            "        surplus = max(len(self.groups) - self.limits.max_terminal_cohorts, 0)\n"
            "        names = sorted(self.groups, key=lambda n: self.groups[n].watermark.used)[:surplus]\n"
            "        for name in names:\n            self.idle = [entry for entry in self.idle if entry[1] != name]\n"
            "            del self.groups[name]\n",
        ),
        breaks="watermark_kept",
    ),
    core(
        "ExpireWatermarkWhileRetained",
        "test_retention.py::test_a_retained_cohort_keeps_its_watermark_whatever_its_age",
        "a superseded attempt is served again while its successor is retained",
        (
            REGISTRY,
            "        if group not in self.groups or self.groups[group].cohorts:\n",
            "        if group not in self.groups:\n",
        ),
        (
            REGISTRY,
            '        self._drop_watermark(group)\n        self._emit("ExpireWatermark"',
            "        self.idle = [entry for entry in self.idle if entry[1] != group]\n"
            '        del self.groups[group]\n        self._emit("ExpireWatermark"',
        ),
        breaks="watermark_kept watermark_monotone",
    ),
    core(
        "EvictNeededByAge",
        "test_retention.py::test_a_finished_cohort_survives_age_and_count_while_a_session_is_open",
        "a caller that was told its outcome finds it gone while its session is open",
        (
            REGISTRY,
            "        if cohort.active or self.needed(cohort):\n",
            "        if cohort.active or cohort.waiters:\n",
        ),
        (
            STATE,
            "            if not self.needed(cohort):\n                due.append(key)\n",
            "            if not cohort.waiters:\n                due.append(key)\n",
        ),
        breaks="keep_needed needed_never_dropped replay_never_stalls",
    ),
    core(
        "EvictNeededByCount",
        "test_retention.py::test_needed_cohorts_go_beyond_the_cap_only_when_they_would_be_evicted",
        "a sibling's recorded verdict is lost, and the group is judged anew",
        (
            STATE,
            "[cohort for cohort in oldest if not self.needed(cohort)]",
            "[cohort for cohort in oldest if not cohort.waiters]",
        ),
        breaks="needed_never_dropped recorded_implies_recoverable",
    ),
    core(
        "KeepNothing",
        "test_retention.py::test_a_finished_cohort_survives_age_and_count_while_a_session_is_open",
        "nothing is kept for open sessions",
        (
            STATE,
            "        return bool(cohort.waiters) or any(session in self.sessions for session in cohort.sessions)\n",
            "        return bool(cohort.waiters)\n",
        ),
    ),
    core(
        "KeepAnyMember",
        "test_retention.py::test_of_needed_cohorts_only_the_session_tables_view_counts "
        "test_retention.py::test_once_its_sessions_ended_it_is_an_ordinary_tombstone",
        "finished cohorts pile up for ever",
        (
            STATE,
            "        return bool(cohort.waiters) or any(session in self.sessions for session in cohort.sessions)\n",
            "        return bool(cohort.waiters) or bool(cohort.members)\n",
        ),
        breaks="cap_respected",
    ),
    core(
        "TtlNever",
        "test_retention.py::test_a_finished_cohort_goes_when_its_age_reaches_the_ttl",
        "finished cohorts stay for ever",
        (
            STATE,
            "            if now - cohort.terminal_at < ttl:\n",
            "            if now - cohort.terminal_at < ttl * 10**9:\n",
        ),
    ),
    core(
        "WatermarkTtlNever",
        "test_retention.py::test_a_finished_cohort_goes_when_its_age_reaches_the_ttl",
        "watermarks stay for ever",
        (
            STATE,
            "            if now - self.groups[name].watermark.last_used < ttl:\n",
            "            if now - self.groups[name].watermark.last_used < ttl * 10**9:\n",
        ),
    ),
    core(
        "TtlOffByOne",
        "test_retention.py::test_a_finished_cohort_goes_when_its_age_reaches_the_ttl",
        "a cohort whose age is the ttl is still served",
        (
            STATE,
            "            if now - cohort.terminal_at < ttl:\n",
            "            if now - cohort.terminal_at <= ttl:\n",
        ),
        machine=False,
    ),
    core(
        "ReplayRefreshesAge",
        "test_retention.py::test_age_counts_from_the_end_and_a_replay_does_not_refresh_it",
        "a client that asks again and again keeps its cohort for ever",
        (
            REGISTRY,
            "        return Told(cohort.told(sub.index))\n",
            "        cohort.terminal_at = 10.0**9\n        return Told(cohort.told(sub.index))\n",
        ),
        machine=False,
    ),
    core(
        "WatermarkOrder",
        "test_retention.py::test_watermarks_beyond_the_cap_go_least_recently_used_first",
        "busy groups lose their watermark before idle ones",
        (STATE, "self.idle[: max(surplus, 0)]]", "self.idle[len(self.idle) - max(surplus, 0) :]]"),
        breaks="cap_respected",
    ),
    core(
        "WatermarksUncapped",
        "test_retention.py::test_watermarks_beyond_the_cap_go_least_recently_used_first",
        "a watermark of every group there ever was stays in memory",
        (STATE, "self.idle[: max(surplus, 0)]]", "self.idle[:0]]"),
        breaks="cap_respected",
    ),
    core(
        "PruneLeavesTerminal",
        "test_retention.py::test_the_oldest_beyond_the_cap_go_before_the_next_verify_is_taken",
        "the eviction list names cohorts that are gone",
        (STATE, "        self.terminal.pop(cohort.id.key, None)\n", ""),
    ),
    core(
        "PruneLeavesGroup",
        "test_retention.py::test_a_finished_cohort_goes_when_its_age_reaches_the_ttl",
        "an evicted cohort stays in its group and its watermark for ever",
        (STATE, "            del group.cohorts[cohort.id.key]\n", ""),
    ),
    core(
        "PruneLeavesWatermark",
        "test_retention.py::test_a_finished_cohort_goes_when_its_age_reaches_the_ttl",
        "watermarks of evicted groups never go",
        (
            STATE,
            "            if not group.cohorts:\n                insort(self.idle",
            "            if group.cohorts:\n                insort(self.idle",
        ),
    ),
)

SESSION_RULES = (
    core(
        "SessionNeverIdles",
        "test_sessions.py::test_a_session_ends_when_nobody_used_it_for_its_life",
        "a session that nobody can name keeps its cohort for ever",
        (
            STATE,
            "            if now - session.last_used < ttl:\n",
            "            if now - session.last_used < ttl * 10**9:\n",
        ),
    ),
    core(
        "UngroupedRecorded",
        "test_sessions.py::test_without_a_group_id_and_for_unknown_sessions_nothing_is_recorded",
        "cohorts without a group id leak records",
        (
            STATE,
            "        if session is None or cohort.id.group is None or session",
            "        if session is None or session",
        ),
        breaks="ungrouped_gone",
    ),
    core(
        "ReplayNotRecorded",
        "test_sessions.py::test_both_paths_of_a_verify_record_the_member",
        "a caller that reconnected is not in the checkpoint",
        (
            REGISTRY,
            "        self._record(session, cohort, sub.index)\n        late = ",
            "        late = ",
        ),
        breaks="keep_needed",
    ),
    core(
        "DropLeaksSessions",
        "test_retire.py::test_every_way_that_a_cohort_goes_takes_exactly_its_records",
        "records of ended sessions pile up in cohorts",
        (STATE, "        del cohort.sessions[session.session_id]\n", ""),
        breaks="no_leak",
    ),
    core(
        "EndWhileClosed",
        "test_sessions.py::test_a_verify_reply_while_closed_ends_its_session_only_when_admission_opens",
        "an outcome told between prepare and commit is missing from the checkpoint",
        (REGISTRY, ' and by == "verify" and not self.admission.open:\n', ' and by == "verify" and self.closed:\n'),
        breaks="recorded_implies_recoverable",
    ),
    core(
        "StaleClaims",
        "test_sessions.py::test_a_request_under_an_earlier_attempt_is_stale_and_claims_nothing",
        "a leftover request of the crashed attempt claims the restored session",
        (SESSIONS, "        if episode is None or episode == session.episode:\n", "        if True:\n"),
        machine=False,
    ),
)

HOLD = (
    core(
        "NoHold",
        "test_admission.py::test_an_outcome_waits_while_admission_is_closed "
        "test_admission.py::test_closed_is_checked_again_in_the_step_that_publishes",
        "an outcome is told after the export, lost by the crash, and judged anew",
        (
            REGISTRY,
            '        if not self.admission.open:\n            self._emit("Publish"',
            '        if self.closed:\n            self._emit("Publish"',
        ),
        (
            "runtime/life.py",
            "                    while not registry.admission.open:\n",
            "                    while False:\n",
        ),
        breaks="no_outcome_while_closed recorded_implies_recoverable",
    ),
    core(
        "JudgeFailureNotHeld",
        "test_admission.py::test_closed_is_checked_again_in_the_step_that_publishes",
        "a masked row is told after the export, and a reward after the crash",
        (
            REGISTRY,
            '        if not self.admission.open:\n            self._emit("Publish"',
            '        if not self.admission.open and cohort.failure is None:\n            self._emit("Publish"',
        ),
        breaks="no_outcome_while_closed recorded_implies_recoverable",
    ),
    core(
        "LateToldAtOnce",
        "test_admission.py::test_a_session_recorded_after_the_export_waits_for_resume",
        "a second session is told what the checkpoint does not hold for it",
        (STATE, "        session.late = self.admission.exported is not None\n", "        session.late = False\n"),
        breaks="recorded_implies_recoverable",
    ),
    core(
        "LateForgotten",
        "test_admission.py::test_a_session_recorded_after_the_export_waits_for_resume",
        "a late request is never answered",
        (
            REGISTRY,
            "        answered = [w for w, cohort in late.items() if not cohort.active]\n",
            "        answered: list[int] = []\n",
        ),
    ),
    core(
        "LateForEver",
        "test_admission.py::test_a_session_recorded_after_the_export_waits_for_resume",
        "a session that was late once waits for a resume that never comes",
        (
            REGISTRY,
            "            session.late = False\n            if session.ending",
            "            session.late = session.late\n            if session.ending",
        ),
    ),
)

EXPORT = (
    core(
        "CompletedNotExported",
        "test_checkpoints.py::test_every_member_gets_its_own_outcome_again_at_once",
        "a rollout that recorded its reward replays into a process that forgot it",
        (
            RECORD,
            "    if isinstance(cohort.failure, CohortFailed):\n",
            "    if isinstance(cohort.failure, CohortFailed) or cohort.phase is Phase.COMPLETED:\n",
        ),
        breaks="outcome_stable recorded_implies_recoverable",
    ),
    core(
        "JudgeFailureNotExported",
        "test_checkpoints.py::test_the_state_of_a_judge_failure",
        "a rollout that recorded its masked row replays and is judged",
        (RECORD, "    if isinstance(cohort.failure, CohortFailed):\n", "    if cohort.failure is not None:\n"),
        breaks="recorded_implies_recoverable replay_never_stalls",
    ),
    core(
        "HeldNotExported",
        "test_checkpoints.py::test_a_held_outcome_is_exported_and_found_after_the_crash",
        "answers that were judged before the checkpoint are judged again",
        (RECORD, "    if cohort.active and cohort.phase is not Phase.HELD:\n", "    if cohort.active:\n"),
        breaks="never_judged_twice",
    ),
    core(
        "ExportSibling",
        "test_checkpoints.py::test_the_state_of_a_session_is_its_own_outcome_and_nothing_else",
        "a rollout replays and gets its sibling's reward",
        (
            RECORD,
            '    assert member.result is not None, "a judged member has its result"\n',
            "    member = cohort.members[min(cohort.members)]\n    assert member.result is not None\n",
        ),
        breaks="own_outcome",
    ),
    core(
        "ExportTearsGroup",
        "test_checkpoints.py::test_one_group_is_exported_in_one_step_with_all_its_cohorts",
        "of one cohort one member is restored and its sibling meets a conflict",
        (
            REGISTRY,
            "                members = {s: i for s, i in cohort.sessions.items() if s not in done}\n",
            "                first = min(cohort.sessions.values(), default=0)\n"
            "                members = {s: i for s, i in cohort.sessions.items() if s not in done and i == first}\n",
        ),
        breaks="no_false_conflict",
    ),
    core(
        "WatermarkNotExported",
        "test_checkpoints.py::test_a_superseded_attempt_stays_superseded_after_a_restore",
        "a superseded attempt is served again after a crash",
        (RECORD, '        "newest_attempt": mark.attempt,\n', '        "newest_attempt": cohort.id.attempt,\n'),
        breaks="watermark_survives_restore",
    ),
)

RESTORE = (
    core(
        "RestoreNoWatermark",
        "test_checkpoints.py::test_a_superseded_attempt_stays_superseded_after_a_restore",
        "after a crash older attempts are accepted again",
        (REGISTRY, "        self.groups = rebuild.state.groups\n", "        self.groups = {}\n"),
        breaks="watermark_kept",
    ),
    core(
        "RestoreAsCollecting",
        "test_checkpoints.py::test_every_member_gets_its_own_outcome_again_at_once",
        "a replay waits for siblings that will never come",
        (
            RECORD,
            "        cohort.phase = Phase.COMPLETED if saved.failure is None else Phase.FAILED\n"
            "        cohort.failure = saved.failure\n",
            "        cohort.phase = Phase.COLLECTING\n        self.state.held += cohort.size\n",
        ),
        (RECORD, "        self.state.terminal[cohort_id.key] = None\n", ""),
        breaks="replay_never_stalls",
    ),
    core(
        "RestoreForgetsSessions",
        "test_checkpoints.py::test_siblings_that_closed_before_the_export_are_not_needed_for_a_replay",
        "restored cohorts are evicted before they were replayed",
        (RECORD, "        cohort.sessions[session.session_id] = saved.index\n", ""),
        breaks="needed_never_dropped",
    ),
    core(
        "PartialRestore",
        "test_record.py::test_a_state_that_is_not_known_is_refused",
        "a damaged file is restored in part, and the rest of the group is judged anew",
        (
            RECORD,
            '            raise StateRefused(f"session {session_id!r}: {bad}") from None\n',
            "            return\n",
        ),
        breaks="all_or_nothing_restore",
    ),
    core(
        "AgreementUnchecked",
        "test_record.py::test_sessions_that_disagree_are_refused_in_both_orders",
        "of two sessions that disagree about a member one gets the other's outcome",
        (RECORD, "        if known is not member and known != member:\n", "        if known.index != saved.index:\n"),
        breaks="all_or_nothing_restore",
    ),
    core(
        "RestoreIgnoresOutcomes",
        "test_record.py::test_failures_that_disagree_are_refused",
        "one sibling is restored with a reward and the other with a failure",
        (RECORD, "        elif cohort.failure != saved.failure:\n", "        elif cohort.failure != cohort.failure:\n"),
        machine=False,
    ),
    core(
        "TwiceAccepted",
        "test_record.py::test_a_session_id_that_occurs_twice_is_refused",
        "a file with a session twice is restored with one of them",
        (
            RECORD,
            "        if session_id in self._seen:\n",
            '        if session_id in self._seen and session_id == "":\n',
        ),
    ),
    core(
        "UnknownSchemeRestored",
        "test_record.py::test_a_state_that_is_not_known_is_refused",
        "answers are compared under a scheme that nobody computes",
        (RECORD, "        if self.scheme not in DIGEST_SCHEMES:\n", '        if self.scheme == "":\n'),
    ),
    core(
        "SchemeIgnored",
        "test_checkpoints.py::test_the_comparison_is_done_under_the_scheme_that_was_saved",
        "a replay of state under the older scheme meets a conflict",
        (
            COHORT,
            "        return answer.digests.get(self.scheme) == self.digest\n",
            "        return next(iter(answer.digests.values())) == self.digest\n",
        ),
        machine=False,
    ),
    core(
        "RestoreIntoState",
        "test_checkpoints.py::test_a_restore_needs_an_empty_process_and_says_what_is_there",
        "a restore mixes with what live traffic made",
        (REGISTRY, '            "open sessions": len(self.sessions),\n', '            "open sessions": 0,\n'),
    ),
    core(
        "SameEpisodeAttempt",
        "test_record.py::test_what_is_saved_comes_back",
        "requests of the crashed attempt pass as those of the restored one",
        (RECORD, "Session(session_id, episode.next, ", "Session(session_id, episode, "),
        breaks="all_or_nothing_restore",
    ),
)

RETIRE = (
    core(
        "RetireSkipped",
        "test_retire.py::test_a_live_retire_answers_what_waits_and_frees_a_collecting_slot "
        "test_retire.py::test_a_failed_restore_leaves_groups_that_re_form_with_the_same_attempt",
        "a rollout that starts over meets its own old answer",
        (
            REGISTRY,
            "        for episode in listed:\n            self.sessions.retire",
            "        for episode in listed[:0]:\n            self.sessions.retire",
        ),
        breaks="no_false_conflict retire_never_waits_for_cohort",
    ),
    core(
        "RetireNoop",
        "test_retire.py::test_a_live_retire_answers_what_waits_and_frees_a_collecting_slot "
        "test_retire.py::test_a_failed_restore_leaves_groups_that_re_form_with_the_same_attempt",
        "sessions end, but everything they held stays",
        (
            REGISTRY,
            "            self._free_slot(key, index)\n        self.sessions.remove",
            "            self.cohorts[key].members[index].pending = False\n        self.sessions.remove",
        ),
        (
            REGISTRY,
            "        self._unrecord(session)\n"
            "        if pending and not cohort.held_by(index):\n            self._drop_member(cohort, index)\n",
            "        self._unrecord(session)\n",
        ),
        breaks="no_false_conflict",
    ),
    core(
        "LiveRetireKeepsSlot",
        "test_retire.py::test_a_live_retire_answers_what_waits_and_frees_a_collecting_slot",
        "a rollout that starts over with the same group attempt meets its own old answer",
        (
            REGISTRY,
            "        if index in cohort.members and not cohort.held_by(index):\n",
            "        if index in cohort.members and cohort.held_by(index) and self.closed:\n",
        ),
        breaks="no_false_conflict",
    ),
    core(
        "LiveRetireFreesShared",
        "test_retire.py::test_a_slot_that_somebody_else_holds_stays",
        "another waiter's answer is taken from under it",
        (
            REGISTRY,
            "        if index in cohort.members and not cohort.held_by(index):\n",
            "        if index in cohort.members:\n",
        ),
        breaks="no_foreign_free",
    ),
    core(
        "LiveRetireFreesUngrouped",
        "test_retire.py::test_without_a_group_id_no_slot_is_freed",
        "without a group id a retired rollout's slot is given to the next that comes",
        (
            REGISTRY,
            "        if cohort is None or cohort.id.group is None or cohort.phase is not Phase.COLLECTING:\n",
            "        if cohort is None or cohort.phase is not Phase.COLLECTING:\n",
        ),
    ),
    core(
        "RetireWaitsForCohort",
        "test_retire.py::test_a_live_retire_answers_what_waits_and_frees_a_collecting_slot",
        "a retire waits for a cohort that waits for the retired rollout",
        (
            REGISTRY,
            '            self._answer(now, waiter, Refused("stale_attempt", text))\n',
            "            self.waiters[waiter].session = None\n",
        ),
        (REGISTRY, "        answered += self._answer_retired(now)\n", ""),
        breaks="retire_never_waits_for_cohort",
    ),
    core(
        "RetireLeaksSession",
        "test_retire.py::test_in_a_judged_or_finished_cohort_the_answer_stays",
        "records of retired sessions keep their cohorts for ever",
        (
            REGISTRY,
            "        self._release(session)\n        for key, index in dict",
            "        session.member = None\n        for key, index in dict",
        ),
        breaks="no_leak",
    ),
    core(
        "RetireDropsCohort",
        "test_retire.py::test_only_the_last_restored_session_of_a_member_takes_it_along",
        "with one failed rollout its siblings' restored outcomes go",
        (
            REGISTRY,
            "        if pending and not cohort.held_by(index):\n            self._drop_member(cohort, index)\n",
            "        if pending and not cohort.held_by(index):\n            self._drop_cohort(cohort)\n",
        ),
        breaks="needed_never_dropped replayed_survives_retire",
    ),
    core(
        "RetireKeepsEmptyCohort",
        "test_retire.py::test_a_failed_restore_leaves_groups_that_re_form_with_the_same_attempt",
        "a group whose restored members are gone is still finished, and cannot re-form",
        (
            STATE,
            "        if cohort.members:\n            self._changed(cohort)\n            return\n",
            "        self._changed(cohort)\n        if cohort.size:\n            return\n",
        ),
        breaks="retire_frees",
    ),
    core(
        "RetireKeepsWatermark",
        "test_retire.py::test_a_failed_restore_leaves_groups_that_re_form_with_the_same_attempt",
        "a group that re-forms below the restored watermark is refused as superseded",
        (
            STATE,
            "self.groups[name].watermark.installed and not self.groups[name].cohorts:\n",
            "self.groups[name].watermark.installed and self.groups[name].cohorts:\n",
        ),
        breaks="watermark_released",
    ),
    core(
        "RetireDropsLiveWatermark",
        "test_retire.py::test_a_watermark_that_live_traffic_used_stays",
        "a superseded attempt is served again after a retire",
        (
            STATE,
            "        if name is not None and self.groups[name].watermark.installed and not self.groups[name].cohorts:\n"
            "            self._drop_watermark(name)\n",
            "        if name is not None:\n"
            "            self.idle = [entry for entry in self.idle if entry[1] != name]\n"
            "            del self.groups[name]\n",
        ),
        breaks="watermark_kept watermark_monotone",
    ),
    core(
        "RetireForgetsWatermark",
        "test_retire.py::test_a_live_retire_answers_what_waits_and_frees_a_collecting_slot",
        "a superseded attempt is served again once the last member of the newest was retired",
        (
            STATE,
            "        if name is not None and self.groups[name].watermark.installed and not",
            "        if name is not None and not",
        ),
        breaks="watermark_monotone",
    ),
    core(
        "RetireDropsReplayed",
        "test_retire.py::test_a_member_that_replayed_stays",
        "a retire takes an answer that was judged and told, and its rollout's siblings meet a hole",
        (
            REGISTRY,
            "        pending = cohort.members[index].pending\n",
            "        pending = cohort.members[index].pending or not cohort.active\n",
        ),
        breaks="replayed_survives_retire",
    ),
    core(
        "ReplayStaysPending",
        "test_retire.py::test_a_member_that_replayed_stays",
        "a retire takes a member whose outcome was told",
        (
            REGISTRY,
            "        cohort.members[sub.index].pending = False\n        return Told",
            "        return Told",
        ),
        breaks="pending_is_unclaimed",
    ),
    core(
        "LateReplayStaysPending",
        "test_retire.py::test_a_member_that_was_told_late_stays",
        "a retire takes a member whose outcome was told when admission opened",
        (STATE, "        cohort.members[index].pending = False\n        self._answer", "        self._answer"),
    ),
    core(
        "FirstSessionTakesMember",
        "test_retire.py::test_only_the_last_restored_session_of_a_member_takes_it_along",
        "a member goes though another restored session backs it",
        (
            REGISTRY,
            "        if pending and not cohort.held_by(index):\n            self._drop_member(cohort, index)\n",
            "        if pending and index not in cohort.waiters.values():\n"
            "            for other in list(cohort.backers(index)):\n"
            "                cohort.sessions.pop(other)\n                self.sessions.get(other).member = None\n"
            "            self._drop_member(cohort, index)\n",
        ),
    ),
    core(
        "DeleteTakesClaimed",
        "test_retire.py::test_what_a_commit_leaves_out_of_its_scope_goes_unless_it_was_claimed",
        "a rollout that continued loses its session to a commit",
        (
            REGISTRY,
            "if session.restored and not session.claimed]",
            "if session.restored]",
        ),
        machine=False,
    ),
    core(
        "ForgetNothing",
        "test_retire.py::test_forget_drops_the_marks_and_the_refused_ids_of_its_rollouts_only",
        "marks of retired rollouts pile up, and a forgotten rollout stays refused",
        (REGISTRY, "        self.sessions.forget(listed)\n", ""),
        machine=False,
    ),
    core(
        "RetireMissesUnboundWaits",
        "test_retire.py::test_a_retire_ends_a_wait_that_came_before_any_session_was_open",
        "a retired attempt is rewarded, and the rollout that started over finds its slot taken",
        (REGISTRY, "        answered += self._answer_retired(now)\n", ""),
        machine=False,
    ),
    core(
        "LateReplyEndsNewAttempt",
        "test_sessions.py::test_an_attempt_that_a_session_left_behind_ends_nothing",
        "the new attempt's session is gone before its checkpoint, and its replay is refused",
        (
            REGISTRY,
            "        if self.sessions.is_over(session_id, episode) is not None:\n            reply",
            "        if self.closed:\n            reply",
        ),
        machine=False,
    ),
    core(
        "RetireOnlyExactAttempt",
        "test_retire.py::test_a_retire_refuses_this_and_earlier_attempts_from_then_on",
        "leftovers of earlier attempts are served after the retire",
        (
            SESSIONS,
            "episode.attempt <= self.retired.get(episode.rollout_id, -1)",
            "episode.attempt == self.retired.get(episode.rollout_id, -1)",
        ),
        machine=False,
    ),
)

CLOSED = (
    core(
        "ClosedSeedBinds",
        "test_sessions.py::test_a_closed_session_is_gone_and_its_id_binds_nothing_for_a_while",
        "a stray seed after the close opens a session that nobody will close, and its cohort is kept for it",
        (REGISTRY, "        if session is None and session_id in self.sessions.closed:\n", "        if self.closed:\n"),
        breaks="closed_stays_closed",
    ),
    core(
        "IdleWhileClosed",
        "test_sessions.py::test_no_session_idles_out_while_admission_is_closed",
        "a caller that was saved as told is missing in the checkpoint that is open",
        (STATE, "        if ttl is None or not self.admission.open:\n", "        if ttl is None:\n"),
        (REGISTRY, "session.waiters or not self.admission.open:\n", "session.waiters:\n"),
    ),
    core(
        "ToldCountsAsIdle",
        "test_sessions.py::test_a_session_counts_its_idle_time_from_its_answer",
        "a session that waited long is gone the moment it is told, and no checkpoint knows its outcome",
        (STATE, "            self.sessions.touch(session, now)\n", ""),
        machine=False,
    ),
)

RUNTIME = (
    Mutant(
        "NoRecheck",
        "an outcome is told in a checkpoint that opened between the wake-up and the publish",
        (
            (
                REGISTRY,
                '        if not self.admission.open:\n            self._emit("Publish"',
                '        if self.closed:\n            self._emit("Publish"',
            ),
        ),
        ("tests/runtime/test_hold.py::test_admission_that_reopens_and_recloses_publishes_nothing",),
        machine=False,
    ),
    Mutant(
        "LostWakeup",
        "held outcomes stay held after the resume",
        (
            (
                "runtime/server.py",
                "        self.gate.bell.ring()\n        self.gate.open_doors()\n",
                "        self.gate.bell.ring()\n",
            ),
        ),
        ("tests/runtime/test_bounded_waits.py::test_what_is_held_is_published_when_admission_opens",),
        machine=False,
    ),
    Mutant(
        "CollectionTimerLost",
        "members wait for one that never comes",
        (
            (
                "runtime/life.py",
                "self._collection.deadline = self._cohort.created_at + self._server.policy.collection_timeout_s\n",
                "self._collection.deadline = float('inf')\n",
            ),
        ),
        ("tests/runtime/test_bounded_waits.py::test_a_lonely_member_waits_for_the_collection_deadline_and_no_longer",),
        machine=False,
    ),
    Mutant(
        "EvaluationTimerLost",
        "members wait for a judge that is silent",
        (
            (
                "runtime/life.py",
                "self._ticket.deadline.deadline = trio.current_time() + self._server.policy.evaluation_timeout_s",
                "self._ticket.deadline.deadline = float('inf')",
            ),
        ),
        ("tests/runtime/test_bounded_waits.py::test_a_silent_judge_is_waited_for_until_the_evaluation_deadline",),
        machine=False,
    ),
    Mutant(
        "SweepLost",
        "when nobody verifies any more, nothing is ever evicted",
        (
            (
                "runtime/server.py",
                "            await trio.sleep(PRUNE_EVERY_S)\n"
                "            self.registry.prune(self.now(), self.gate.busy)\n",
                "            await trio.sleep(PRUNE_EVERY_S)\n",
            ),
        ),
        ("tests/runtime/test_bounded_waits.py::test_memory_drains_when_nobody_comes_any_more",),
        machine=False,
    ),
    Mutant(
        "DisconnectLeaksWaiter",
        "waiters of disconnected clients pile up",
        (("runtime/server.py", "                self.registry.leave(self.now(), waiter)\n", ""),),
        ("tests/runtime/test_bounded_waits.py::test_a_request_that_left_is_no_longer_waited_for",),
        machine=False,
    ),
    Mutant(
        "ReplayRefused",
        "a member that asks again for its stored outcome is refused, and its rollout is lost",
        (
            (
                "runtime/server.py",
                "            return self._verified(reply.outcome)\n",
                '            return self._verified(Refused("slot_closed", ""))\n',
            ),
        ),
        ("tests/runtime/test_life.py::test_a_retry_waits_with_the_others_and_is_told_again_without_a_judge_call",),
        machine=False,
    ),
    Mutant(
        "RetireDuringCommit",
        "a caller is captured, its session retired, and its replay meets a sibling's cohort",
        (
            (
                "checkpoints/phases.py",
                "    (Phase.PREPARED, Step.RESUME): Phase.IDLE,\n",
                "    (Phase.PREPARED, Step.RESUME): Phase.IDLE,\n    (Phase.PREPARED, Step.RETIRE): Phase.PREPARED,\n",
            ),
        ),
        ("tests/runtime/test_control.py::test_retire_and_forget_are_refused_while_a_checkpoint_is_open",),
        machine=False,
    ),
    Mutant(
        "RetireIsNoBlocker",
        "a commit exports sessions that a retire is still freeing",
        (
            (
                "runtime/control.py",
                "        return list(dict.fromkeys([*self._server.gate.blockers, *retiring]))\n",
                "        return list(dict.fromkeys([*self._server.gate.blockers, *retiring[:0]]))\n",
            ),
        ),
        ("tests/runtime/test_control.py::test_a_retire_waits_for_the_requests_of_its_sessions_and_blocks_a_prepare",),
        machine=False,
    ),
    Mutant(
        "GateNoRecheck",
        "a seed passes while the next checkpoint is open already",
        (
            (
                "runtime/gate.py",
                "            while not self._passes(kind):\n                await self.doors()\n",
                "            if not self._passes(kind):\n                await self.doors()\n",
            ),
        ),
        ("tests/runtime/test_gate.py::test_a_waiting_request_stays_out_when_admission_recloses_before_it_woke",),
        machine=False,
    ),
    Mutant(
        "VerifyBeforeRestore",
        "a replay that comes before the restore starts a cohort, and the restore is refused",
        (
            (
                "runtime/gate.py",
                "        if self.awaits_restore:\n            return False\n",
                '        if self.awaits_restore and kind != "verify":\n            return False\n',
            ),
        ),
        ("tests/runtime/test_gate.py::test_every_request_waits_for_a_restore",),
        machine=False,
    ),
    Mutant(
        "WaitingToolClaims",
        "a call that waits at the gate claims a session that the open checkpoint is to delete",
        (
            (
                "runtime/gate.py",
                "            while not self._passes(kind):\n",
                '            if kind == "tool" and session is not None:\n'
                "                self._registry.use_session(self._now(), session, episode)\n"
                "            while not self._passes(kind):\n",
            ),
            (
                "runtime/gate.py",
                '        if kind == "tool" and session is not None:\n'
                "            self._registry.use_session(self._now(), session, episode)\n        stale",
                "        stale",
            ),
        ),
        ("tests/spec/test_traces.py::test_what_the_server_does_is_what_the_spec_says",),
        machine=False,
    ),
)

CONNECTIONS = (
    Mutant(
        "GuardLetsThrough",
        "a defect at one connection ends the process, and every held cohort with it",
        (
            (
                "web/serving/server.py",
                "            self._guarded(group)\n",
                "            self._guarded(group)\n            raise\n",
            ),
        ),
        ("tests/web/test_process.py::test_a_defect_at_a_connection_ends_that_one_alone_and_each_kind_is_logged_once",),
        machine=False,
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *ATTEMPTS,
    *ENDINGS,
    *RETENTION,
    *SESSION_RULES,
    *CLOSED,
    *HOLD,
    *EXPORT,
    *RESTORE,
    *RETIRE,
    *RUNTIME,
    *CONNECTIONS,
)
