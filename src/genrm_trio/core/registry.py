"""The Registry: one method per action of the spec, each one synchronous step that emits one event.

`now` is monotonic seconds. Guards that depend on a client end in a refusal; guards that only a defect can
break raise NotEnabled. What time makes due is read (`due_*`) by the caller, who then calls the action.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from genrm_trio.core.cohort import Answer, Cohort, Member, NotEnabled, Phase
from genrm_trio.core.identity import CohortId, EpisodeId
from genrm_trio.core.outcome import (
    JSON,
    CohortFailed,
    FailureCode,
    JudgeFailed,
    Outcome,
    Refused,
    Rewarded,
    SubmitReply,
    Told,
    Waits,
    unfit_field,
)
from genrm_trio.core.record import Rebuild, session_state
from genrm_trio.core.sessions import Session
from genrm_trio.core.state import Admission, State, Waiter
from genrm_trio.core.trace import Event

SeedReply = Literal["bound", "unbound", "closed", "stale_attempt", "shutting_down", "too_busy"]
EndedBy = Literal["verify", "close"]


@dataclass(frozen=True, slots=True)
class Submission:
    """One `/verify`, as far as the core needs it.

    waiter: a number of this request's own. session: the id its cookie names. episode: from its path prefix.
    prompt: the prompt digest with its suffixes. payload: handed to the judge, opaque here.
    """

    waiter: int
    cohort: CohortId
    index: int
    prompt: str
    answer: Answer
    session: str | None = None
    episode: EpisodeId | None = None
    payload: object = None


class Registry(State):
    """The one owner of all state. Its public methods are the actions, and readings that change nothing."""

    def _emit(self, name: str, reply: JSON, **args: JSON) -> None:
        if self.trace is not None:
            self.trace(Event(name, args, reply))

    # -- verification ----------------------------------------------------------------------------------

    def submit(self, now: float, submission: Submission) -> SubmitReply:
        """Take one `/verify` through the checks of contract 5.2, from the sixth on.

        Replies `Waits` (the answer comes by a later action), `Told` (a stored outcome) or `Refused`. Holds the
        caps first, whatever the reply.
        """
        reply, evicted, superseded = self._submit(now, submission)
        if self.trace is not None:
            self._emit(
                "Submit",
                {"reply": _reply_name(reply), "evicted": list(evicted), "superseded": list(superseded)},
                waiter=submission.waiter,
                session=submission.session,
                episode=submission.episode.key if submission.episode else None,
                cohort=submission.cohort.key,
                group=submission.cohort.group,
                attempt=submission.cohort.attempt,
                index=submission.index,
                prompt=submission.prompt,
                answer=next(iter(submission.answer.digests.values()), ""),
            )
        return reply

    def _submit(self, now: float, sub: Submission) -> tuple[SubmitReply, list[str], list[str]]:
        if self.closed:
            return _shutting_down(), [], []
        stale = self.sessions.stale(sub.session, sub.episode)
        if stale is not None:
            return Refused("stale_attempt", stale), [], []
        session = self.sessions.get(sub.session)
        if session is not None:
            self.sessions.use(session, now, sub.episode)
        evicted, _ = self._prune_by_count()
        refused = self._refused_by_group(sub) or self._refused_by_bound(sub)
        if refused is not None:
            return refused, evicted, []
        superseded: list[str] = []
        if sub.cohort.group is not None:
            superseded = self._enter_group(now, sub.cohort.group, sub)
        cohort = self.cohorts.get(sub.cohort.key)
        if cohort is None:
            cohort = self._add_cohort(now, sub.cohort, sub.prompt)
        return self._join(cohort, sub, session), evicted, superseded

    def _refused_by_group(self, sub: Submission) -> Refused | None:
        """Checks 6 and 7."""
        name = sub.cohort.group
        group = self.groups.get(name) if name is not None else None
        if group is None:
            return None
        mark = group.watermark
        if mark.prompt != sub.prompt:
            text = f"inconsistent prompt or principle for group {name!r}"
            return Refused("inconsistent_prompt", f"{text}: a group keeps its prompt; use another _ng_group_id")
        if sub.cohort.attempt < mark.attempt:
            return _superseded_request(name, sub.cohort.attempt, mark.attempt)
        return None

    def _refused_by_bound(self, sub: Submission) -> Refused | None:
        """A cohort's places are reserved when it starts, so that its members are never refused (contract 14.15)."""
        bound = self.limits.max_held_members
        if bound is None or sub.cohort.key in self.cohorts:
            return None
        freed = sum(cohort.size for cohort in self._older_active(sub.cohort))
        if self.held - freed + self.limits.cohort_size <= bound:
            return None
        return Refused("too_busy", f"{self.held} of at most {bound} members are held; a new cohort finds no place")

    def _older_active(self, cohort_id: CohortId) -> list[Cohort]:
        group = self.groups.get(cohort_id.group) if cohort_id.group is not None else None
        if group is None:
            return []
        return [c for c in group.cohorts.values() if c.active and c.id.attempt < cohort_id.attempt]

    def _enter_group(self, now: float, name: str, sub: Submission) -> list[str]:
        """Check 8: move or refresh the watermark; every active older attempt fails."""
        older = self._older_active(sub.cohort)
        self._use_watermark(now, name, sub.cohort.attempt, sub.prompt)
        for cohort in older:
            text = _superseded_text(name, cohort.id.attempt, sub.cohort.attempt)
            self._fail(now, cohort, "superseded", CohortFailed("superseded", text, sub.cohort.attempt))
        return [cohort.id.key for cohort in older]

    def _join(self, cohort: Cohort, sub: Submission, session: Session | None) -> SubmitReply:
        """Checks 9 to 14."""
        key, index = cohort.id.key, sub.index
        if cohort.prompt != sub.prompt:
            return Refused("inconsistent_prompt", f"inconsistent prompt or principle for cohort {key!r}")
        member = cohort.members.get(index)
        if cohort.phase is Phase.FAILED:
            return self._rejoin_failed(cohort, sub, session)
        if member is not None:
            if not member.holds(sub.answer):
                return Refused(
                    "different_response",
                    f"cohort {key!r} already has a different response for rollout_index={index}; "
                    "a regenerated answer needs a higher group attempt",
                )
            return self._attach(cohort, sub, session)
        if cohort.phase is not Phase.COLLECTING:
            state = "already completed" if cohort.phase is Phase.COMPLETED else "already evaluating"
            return Refused(
                "slot_closed",
                f"cohort {key!r} is {state}; rollout_index={index} cannot be added, it needs a higher group attempt",
            )
        started = not cohort.members
        self._take_slot(cohort, sub)
        self._record(session, cohort, index)
        self._wait(sub.waiter, _waiter(sub, session), index)
        if len(cohort.members) == cohort.size:
            cohort.step("last member")
        self._changed(cohort)
        return Waits(key, started)

    def _take_slot(self, cohort: Cohort, sub: Submission) -> None:
        scheme, digest = next(iter(sub.answer.digests.items()))
        cohort.members[sub.index] = Member(sub.index, digest, scheme, sub.answer.raw, sub.payload)

    def _rejoin_failed(self, cohort: Cohort, sub: Submission, session: Session | None) -> SubmitReply:
        """Check 10: the recorded failure again, whatever the answer.

        After a restore a judge failure can meet a member that the file did not hold; it takes its slot, so that
        its session backs it and the next checkpoint knows that it was told.
        """
        if sub.index not in cohort.members:
            if not isinstance(cohort.failure, JudgeFailed):
                assert cohort.failure is not None, "a failed cohort has its failure"
                return Told(cohort.failure)
            self._take_slot(cohort, sub)
            cohort.members[sub.index].payload = None
        return self._attach(cohort, sub, session)

    def _attach(self, cohort: Cohort, sub: Submission, session: Session | None) -> SubmitReply:
        """Check 12: wait with the others, or be told what is stored."""
        self._record(session, cohort, sub.index)
        late = session is not None and session.late and not isinstance(cohort.failure, CohortFailed)
        if cohort.active or late:
            self._wait(sub.waiter, _waiter(sub, session), sub.index)
            return Waits(cohort.id.key, started=False)
        cohort.members[sub.index].pending = False
        return Told(cohort.told(sub.index))

    def leave(self, now: float, waiter: int) -> None:
        """A waiting request went away: its waiter goes, its member stays. No-op when it was answered already."""
        left = waiter in self.waiters
        if left:
            self._remove_waiter(now, waiter)
        self._emit("Leave", left, waiter=waiter)

    # -- a cohort's life -------------------------------------------------------------------------------

    def _cohort(self, key: str) -> Cohort:
        cohort = self.cohorts.get(key)
        if cohort is None:
            raise NotEnabled(f"no cohort {key!r}")
        return cohort

    def expire_collection(self, now: float, key: str) -> None:
        """The collection deadline passed before all members came: the cohort fails, its waiters are answered."""
        cohort = self._cohort(key)
        if cohort.phase is not Phase.COLLECTING:
            raise NotEnabled(f"cohort {key!r} is {cohort.phase}, not collecting")
        text = (
            f"cohort {key!r} did not collect {cohort.size} unique rollout indices: "
            f"{len(cohort.members)} of {cohort.size} came before the deadline"
        )
        failure = CohortFailed("collection_timeout", _sticky(cohort, text))
        answered = self._fail(now, cohort, "expire_collection", failure)
        self._emit("ExpireCollection", {"answered": list(answered)}, cohort=key)

    def judged(self, now: float, key: str, results: Sequence[Rewarded]) -> None:
        """The verdict is there: one result per member, in the order of rollout index. It waits to be published.

        Raises ValueError when the number of results differs from the number of members, or a number is not finite:
        what a restore would refuse never gets in.
        """
        cohort = self._cohort(key)
        members = cohort.by_index
        if len(results) != len(members):
            raise ValueError(f"{len(results)} results for {len(members)} members of cohort {key!r}")
        for result in results:
            unfit = unfit_field(result.fields)
            if unfit is not None:
                raise ValueError(f"{unfit} {result.fields.get(unfit)!r} of cohort {key!r} is not a finite number")
        cohort.step("judged")
        for member, result in zip(members, results, strict=True):
            member.result = result
            member.payload = None
        self._changed(cohort)
        self._emit("Judged", None, cohort=key, results=[dict(r.fields) for r in results])

    def judge_failed(self, now: float, key: str, text: str) -> None:
        """The judge failed, or the evaluation deadline passed; the failure waits to be published like a verdict."""
        cohort = self._cohort(key)
        cohort.step("judge_failed")
        cohort.failure = JudgeFailed(_sticky(cohort, text))
        for member in cohort.members.values():
            member.payload = None
        self._changed(cohort)
        self._emit("JudgeFailed", None, cohort=key)

    def publish(self, now: float, key: str) -> bool:
        """Tell every member its own outcome, unless admission is closed: then nothing changes. Says which.

        The check is made here, in the step that publishes: admission may have reopened and closed again between
        the waking of the caller and this call.
        """
        cohort = self._cohort(key)
        if cohort.phase is not Phase.HELD:
            raise NotEnabled(f"cohort {key!r} is {cohort.phase}, not held")
        if not self.admission.open:
            self._emit("Publish", {"published": False, "answered": []}, cohort=key)
            return False
        rewarded = cohort.failure is None
        cohort.step("publish rewards" if rewarded else "publish judge failure")
        answered = self._answer_all(now, cohort)
        self._terminate(now, cohort)
        if rewarded and cohort.id.group is None:
            self._drop_cohort(cohort)
        self._emit("Publish", {"published": True, "answered": list(answered)}, cohort=key)
        return True

    def fail(self, now: float, key: str, code: FailureCode, text: str) -> None:
        """An active cohort ends without a verdict, by an unexpected error or a cancelled evaluation. Not held."""
        cohort = self._cohort(key)
        answered = self._fail(now, cohort, "fail", CohortFailed(code, _sticky(cohort, text)))
        self._emit("Fail", {"answered": list(answered)}, cohort=key, code=code)

    def _fail(self, now: float, cohort: Cohort, step: str, failure: CohortFailed) -> list[int]:
        cohort.step(step)
        cohort.failure = failure
        for member in cohort.members.values():
            member.result = None
        answered = self._answer_all(now, cohort)
        self._terminate(now, cohort)
        return answered

    # -- retention -------------------------------------------------------------------------------------

    def expire(self, now: float, key: str) -> None:
        """A terminal cohort that nobody needs goes by age."""
        cohort = self._cohort(key)
        if cohort.active or self.needed(cohort):
            raise NotEnabled(f"cohort {key!r} is active or needed")
        self._evict(cohort)
        self._emit("Expire", None, cohort=key)

    def expire_watermark(self, now: float, group: str) -> None:
        """The watermark of a group without a retained cohort goes by age."""
        if group not in self.groups or self.groups[group].cohorts:
            raise NotEnabled(f"group {group!r} has no watermark, or retains a cohort")
        self._drop_watermark(group)
        self._emit("ExpireWatermark", None, group=group)

    def expire_session(self, now: float, session_id: str) -> None:
        """An idle session ends as if closed, but its id is not remembered."""
        session = self.sessions.get(session_id)
        if session is None or session.waiters or not self.admission.open:
            raise NotEnabled(f"session {session_id!r} is not open, a request waits with it, or admission is closed")
        self._end(session)
        self._emit("ExpireSession", None, session=session_id)

    def prune(self, now: float, busy: Collection[str] = ()) -> None:
        """Carry out what age makes due: idle sessions but the busy ones, then cohorts, then watermarks."""
        for session_id in self.due_sessions(now):
            if session_id not in busy:
                self.expire_session(now, session_id)
        for key in self.due_cohorts(now):
            self.expire(now, key)
        for group in self.due_watermarks(now):
            self.expire_watermark(now, group)
        ttl = self.limits.session_idle_ttl_s
        if ttl is not None:
            self.sessions.forget_closed(now - ttl)

    # -- sessions --------------------------------------------------------------------------------------

    def seed(
        self, now: float, session_id: str, episode: EpisodeId | None, *, binds: bool, typed: bool = False
    ) -> SeedReply:
        """A seed of this session: bind it to its episode when `binds`, and claim it when it was restored."""
        reply = self._seed(now, session_id, episode, binds=binds, typed=typed)
        self._emit(
            "Seed",
            reply,
            session=session_id,
            episode=episode.key if episode else None,
            binds=binds,
            typed=typed,
        )
        return reply

    def _seed(self, now: float, session_id: str, episode: EpisodeId | None, *, binds: bool, typed: bool) -> SeedReply:
        if self.closed:
            return "shutting_down"
        if self.sessions.stale(session_id, episode) is not None:
            return "stale_attempt"
        session = self.sessions.get(session_id)
        if session is None and session_id in self.sessions.closed:
            return "closed"
        if not (binds and self.limits.record_sessions and episode is not None):
            if session is not None:
                self.sessions.use(session, now, episode)
            return "unbound"
        if session is None:
            if len(self.sessions) >= self.limits.max_sessions:
                return "too_busy"
            self.sessions.add(Session(session_id, episode, now, typed=typed))
            return "bound"
        if session.episode != episode:
            self.sessions.bind(session, episode)
        self.sessions.use(session, now, episode)
        session.typed = session.typed or typed
        session.ending = False
        return "bound"

    def use_session(self, now: float, session_id: str, episode: EpisodeId | None) -> bool:
        """Any other request of this session: it counts as used, and claims a restored one. False when it is stale."""
        allowed = self.sessions.stale(session_id, episode) is None
        session = self.sessions.get(session_id)
        if allowed and session is not None:
            self.sessions.use(session, now, episode)
        self._emit("UseSession", allowed, session=session_id, episode=episode.key if episode else None)
        return allowed

    def end_session(self, now: float, session_id: str, by: EndedBy, episode: EpisodeId | None = None) -> str:
        """End a session by its 2xx verify reply or its close; replies `ended`, `later`, `unknown` or `stale`.

        By verify while admission is closed it ends when admission opens, so that the open checkpoint exports it.
        Stale, and without effect, is what comes under an `episode` that the session left behind: a reply that was on
        its way when a seed bound the session anew, or the repeated close of an attempt that crashed.
        """
        session = self.sessions.get(session_id)
        reply = "unknown"
        if self.sessions.is_over(session_id, episode) is not None:
            reply = "stale"
        elif session is not None and by == "verify" and not self.admission.open:
            session.ending = True
            reply = "later"
        elif session is not None:
            self._end(session)
            reply = "ended"
        if by == "close" and reply != "stale" and self.limits.record_sessions and not self.closed:
            self.sessions.remember_closed(session_id, now)
        self._emit("EndSession", reply, session=session_id, by=by, episode=episode.key if episode else None)
        return reply

    # -- admission -------------------------------------------------------------------------------------

    def close_admission(self, now: float) -> None:
        """From now on nothing is published, and data requests other than `/verify` wait."""
        if not self.admission.open:
            raise NotEnabled("admission is closed already")
        self.admission = Admission(open=False)
        self._emit("CloseAdmission", None)

    def open_admission(self, now: float) -> None:
        """Admission opens: late requests are told their outcome, and sessions whose reply went out end."""
        if self.admission.open:
            raise NotEnabled("admission is open already")
        self.admission = Admission(open=True)
        # Only late requests wait on terminal cohorts.
        late = {w: self.cohorts[record.cohort] for w, record in self.waiters.items()}
        answered = [w for w, cohort in late.items() if not cohort.active]
        for waiter in answered:
            self._tell(now, late[waiter], waiter)
        ended = []
        for session in self.sessions:
            session.late = False
            if session.ending:
                ended.append(session)
        for session in ended:
            self._end(session)
        self._emit("OpenAdmission", {"answered": list(answered), "ended": [s.session_id for s in ended]})

    # -- checkpoints -----------------------------------------------------------------------------------

    def export_plan(self) -> list[str]:
        """The groups to export, each once: those of terminal cohorts first, in the order of eviction.

        The order is what the eviction order is rebuilt from.
        """
        keys = [*self.terminal, *(key for key, cohort in self.cohorts.items() if cohort.active)]
        groups = {self.cohorts[key].id.group: None for key in keys if self.cohorts[key].sessions}
        return [name for name in groups if name is not None]

    def export(
        self, now: float, group: str | None, left_over: Iterable[str] = (), *, anew: bool = False
    ) -> dict[str, JSON]:
        """The states of all open sessions of one group, in one step; with None, of the sessions left over.

        From the first export on, records are late. A session that is left over has no outcome to keep: its state
        is empty, also when it found a cohort since its turn came. `anew` starts over after an export that failed.
        """
        if self.admission.open:
            raise NotEnabled("an export needs admission to be closed")
        if self.admission.exported is None or anew:
            self.admission.exported = set()
        done = self.admission.exported
        states: dict[str, JSON] = {}
        if group is None:
            states = {s: {} for s in left_over if s in self.sessions and s not in done}
        elif group in self.groups:
            mark = self.groups[group].watermark
            for cohort in self.groups[group].cohorts.values():
                members = {s: i for s, i in cohort.sessions.items() if s not in done}
                states |= {s: session_state(cohort, i, mark) for s, i in members.items()}
        done.update(states)
        if self.trace is not None:
            self._emit("Export", {"states": dict(states)}, group=group, anew=anew)
        return states

    def restore_refused(self) -> str | None:
        """Why this process cannot take a restore, or None: it must hold no session, cohort or watermark."""
        if self.closed:
            return "the server is shutting down"
        held = {
            "open sessions": len(self.sessions),
            "cohorts": len(self.cohorts),
            "watermarks": len(self.groups),
        }
        found = ", ".join(f"{count} {what}" for what, count in held.items() if count)
        return f"a restore needs an empty process; it holds {found}" if found else None

    def restore(self, now: float, rebuild: Rebuild) -> None:
        """Put the state that was built aside in place, all of it in this step. Admission is and stays closed."""
        why = self.restore_refused()
        if why is not None or self.admission.open:
            raise NotEnabled(why or "a restore needs admission to be closed")
        self.sessions.adopt(rebuild.state.sessions)
        self.cohorts = rebuild.state.cohorts
        self.terminal = rebuild.state.terminal
        self.groups = rebuild.state.groups
        self.idle = rebuild.state.idle
        self._uses = rebuild.state._uses
        self._emit("Restore", None, states=rebuild.source)

    def refuse_restore(self, now: float, reason: str) -> None:
        """A restore was refused: nothing of it is installed, nothing changes."""
        self._emit("RefuseRestore", None, reason=reason)

    def retire(self, now: float, episodes: Iterable[EpisodeId]) -> list[str]:
        """Refuse these and earlier attempts from now on, and free what their sessions hold; returns the ended sessions.

        Waiting verifications of those sessions, and those that came under those attempts while no session was open,
        are answered `stale_attempt`. A slot of a collecting cohort is freed
        when nobody else holds it; a restored member goes with its last session unless it replayed; other answers stay.
        """
        listed = list(episodes)
        ended: list[str] = []
        answered: list[int] = []
        for episode in listed:
            self.sessions.retire(episode)
            for session in self.sessions.bound_to(episode):
                answered += self._retire_session(now, session, episode)
                ended.append(session.session_id)
        answered += self._answer_retired(now)
        self._emit(
            "Retire",
            {"ended": list(ended), "answered": list(answered)},
            episodes=[episode.key for episode in listed],
        )
        return ended

    def _retire_session(self, now: float, session: Session, episode: EpisodeId) -> list[int]:
        held = [(self.waiters[w].cohort, self.cohorts[self.waiters[w].cohort].waiters[w]) for w in session.waiters]
        if session.member is not None:
            held.append(session.member)
        text = f"rollout {episode.rollout_id!r} was retired up to attempt {episode.attempt}"
        answered = sorted(session.waiters)
        for waiter in answered:
            self._answer(now, waiter, Refused("stale_attempt", text))
        self._release(session)
        for key, index in dict.fromkeys(held):
            self._free_slot(key, index)
        self.sessions.remove(session)
        self.sessions.refuse(session.session_id, episode.rollout_id)
        return answered

    def _answer_retired(self, now: float) -> list[int]:
        """End the waits of retired attempts that no open session carries, and free what they held."""
        refusals = {w: self.sessions.is_retired(waiter.asked, waiter.episode) for w, waiter in self.waiters.items()}
        answered = {w: text for w, text in refusals.items() if text is not None}
        for number, text in answered.items():
            key = self.waiters[number].cohort
            index = self.cohorts[key].waiters[number]
            self._answer(now, number, Refused("stale_attempt", text))
            self._free_slot(key, index)
        return list(answered)

    def _release(self, session: Session) -> None:
        """End a retired or deleted session's record; a pending member goes with its last session."""
        if session.member is None:
            return
        key, index = session.member
        cohort = self.cohorts[key]
        pending = cohort.members[index].pending
        self._unrecord(session)
        if pending and not cohort.held_by(index):
            self._drop_member(cohort, index)

    def _free_slot(self, key: str, index: int) -> None:
        """Free a slot of a grouped, collecting cohort that no waiter and no open session holds."""
        cohort = self.cohorts.get(key)
        if cohort is None or cohort.id.group is None or cohort.phase is not Phase.COLLECTING:
            return
        if index in cohort.members and not cohort.held_by(index):
            self._drop_member(cohort, index)

    def delete_restored(self, now: float, session_ids: Iterable[str]) -> list[str]:
        """Of these restored sessions those go that nobody claimed, and the members that only they backed.

        Returns the ids of those that went.
        """
        listed = list(session_ids)
        sessions = [session for session in map(self.sessions.get, listed) if session is not None]
        gone = [session for session in sessions if session.restored and not session.claimed]
        for session in gone:
            self._release(session)
            self._end(session)
        ids = [session.session_id for session in gone]
        self._emit("DeleteRestored", list(ids), sessions=[*listed])
        return ids

    def forget(self, now: float, rollout_ids: Iterable[str]) -> None:
        """Drop the marks of retired rollouts, and the refused session ids that belong to them."""
        listed = list(rollout_ids)
        self.sessions.forget(listed)
        self._emit("Forget", None, rollouts=list(listed))

    def shut_down(self, now: float) -> None:
        """Close for good: every active cohort fails, every waiter is answered, every map is cleared."""
        self.closed = True
        answered: list[int] = []
        failure = CohortFailed("shutting_down", "the server is shutting down")
        for cohort in [c for c in self.cohorts.values() if c.active]:
            answered += self._fail(now, cohort, "fail", failure)
        for waiter in list(self.waiters):
            answered.append(waiter)
            self._answer(now, waiter, failure)
        self.sessions.clear()
        self.cohorts.clear()
        self.terminal.clear()
        self.groups.clear()
        self.idle.clear()
        self._emit("ShutDown", {"answered": list(answered)})


def _waiter(sub: Submission, session: Session | None) -> Waiter:
    return Waiter(sub.cohort.key, session.session_id if session is not None else None, sub.session, sub.episode)


def _reply_name(reply: SubmitReply) -> JSON:
    match reply:
        case Waits():
            return {"waits": True}
        case Told(outcome):
            return {"told": outcome_name(outcome)}
        case Refused(code):
            return {"refused": code}


def outcome_name(outcome: Outcome) -> JSON:
    """An outcome as an event shows it: the result's fields, or the kind or code of the failure."""
    match outcome:
        case Rewarded(fields):
            return dict(fields)
        case JudgeFailed():
            return "judge_failed"
        case CohortFailed(code):
            return code


def _shutting_down() -> Refused:
    return Refused("shutting_down", "the server is shutting down")


def _superseded_text(group: str | None, attempt: int, latest: int) -> str:
    return f"group {group!r} attempt {attempt} was superseded by attempt {latest}"


def _superseded_request(group: str | None, attempt: int, latest: int) -> Refused:
    return Refused("superseded", _superseded_text(group, attempt, latest), latest)


def _sticky(cohort: Cohort, text: str) -> str:
    if cohort.id.group is not None:
        return text
    return f"{text}; without a group id this failure stays until the rows carry a fresh _ng_group_id"
