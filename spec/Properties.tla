------------------------------ MODULE Properties ------------------------------
(***************************************************************************)
(* What must hold. State invariants first, then steps ([][..]_vars, about   *)
(* one transition each), then liveness. The comment on each says which      *)
(* behaviour it guards. mutants.json names for each the broken rules that   *)
(* it must catch.                                                          *)
(***************************************************************************)
EXTENDS GenrmTrio

Retained == DOMAIN core.cohort
Range(seq) == {seq[j] : j \in DOMAIN seq}
\* After a step of this name.
Did(name) == ev'[1] = name
Gone == ev'[1] \in {"Crash", "ShutDown"}
Others(m) == {x \in Slots : x[1] = m[1] /\ x # m}

------------------------------------------------------------------------------
(* The server's state by itself. *)

\* Retention walks the eviction list; one that is missing there is never freed, one too many is freed while active.
TerminalListed ==
    /\ Range(core.term) = {k \in Retained : Terminal(core.cohort[k])}
    /\ Len(core.term) = Cardinality(Range(core.term))

\* A group that was asked anew does not go on judging the old attempt.
OneActiveAttempt ==
    \A k, l \in Retained : (k[1] = l[1] /\ Grouped(k[1]) /\ Active(core.cohort[k]) /\ Active(core.cohort[l])) => k = l

\* No attempt is worked on that a newer one replaced.
ActiveHasWatermark ==
    \A k \in Retained : (Grouped(k[1]) /\ Active(core.cohort[k])) => (HasMark(core, k[1]) /\ Mark(core, k[1]).a = k[2])

\* While a result is kept, a request of an older attempt is still known to be old.
WatermarkKept ==
    \A k \in Retained : Grouped(k[1]) => (HasMark(core, k[1]) /\ Mark(core, k[1]).a >= k[2])

\* A watermark that only a restore brought goes with the restored cohorts, so that the group can form again.
WatermarkReleased ==
    \A j \in DOMAIN core.marks : core.marks[j].installed => KeysOf(core, core.marks[j].g) # {}

\* Nothing outlives its owner: records end with sessions and cohorts, pending marks and waits with members.
NoLeak ==
    /\ \A s \in DOMAIN core.record :
        LET r == core.record[s] IN
        /\ s \in DOMAIN core.session
        /\ Grouped(r.k[1])
        /\ r.k \in Retained
        /\ r.i \in Members(core.cohort[r.k])
        /\ r.late => core.exporting
    /\ \A k \in Retained : \A i \in core.cohort[k].pending : i \in Members(core.cohort[k]) /\ Backers(core, k, i) # {}
    /\ \A w \in DOMAIN core.waiting :
        LET r == core.waiting[w] IN
        /\ r.k \in Retained
        /\ r.i \in Members(core.cohort[r.k])
        /\ r.s # None => r.s \in DOMAIN core.session
    /\ \A j, h \in DOMAIN core.marks : core.marks[j].g = core.marks[h].g => j = h
    /\ core.open => (~ core.exporting /\ core.exported = {})

\* A retire that takes the last member takes the cohort (in the code with its timer and its places).
RetireFrees == \A k \in Retained : Members(core.cohort[k]) # {}

\* Without a group id nothing is kept once it is published, so that the same task can be judged again.
UngroupedGone ==
    /\ \A k \in Retained : ~ Grouped(k[1]) => core.cohort[k].phase # "completed"
    /\ \A s \in DOMAIN core.record : Grouped(core.record[s].k[1])
    /\ \A j \in DOMAIN core.marks : Grouped(core.marks[j].g)

\* A server that shut down holds nothing and nobody.
ClosedIsEmpty ==
    core.down => /\ Retained = {}
                 /\ core.term = <<>>
                 /\ core.marks = <<>>
                 /\ DOMAIN core.session = {}
                 /\ DOMAIN core.record = {}
                 /\ DOMAIN core.waiting = {}
                 /\ core.shut = {}
                 /\ DOMAIN core.retired = {}
                 /\ DOMAIN core.refused = {}

\* A late or doubled seed does not bring a closed session back.
ClosedStaysClosed == core.shut \cap DOMAIN core.session = {}

------------------------------------------------------------------------------
(* What callers were told. *)

\* The caller's session is the one that it asked with, if it has asked.
OneSession(m) == May("again") => (caller[m].sid = 1 \/ caller[m].via = caller[m].sid)

\* A caller that was told its outcome, and has not written it down yet, can ask again.
KeepNeeded ==
    (Serving /\ ~ core.down) =>
        \A m \in Slots :
            ( /\ caller[m].st = "verify"
              /\ IsOutcome(caller[m].told)
              /\ Grouped(m[1])
              /\ SessionOf(m) \in DOMAIN core.session
              /\ OneSession(m) )
            => ( /\ KeyOf(m) \in Retained
                 /\ Terminal(core.cohort[KeyOf(m)])
                 /\ Told(core.cohort[KeyOf(m)], m[2]) = caller[m].told )

\* Nobody trains on a sibling's reward, or on the reward of another answer.
OwnOutcome ==
    \A m \in Slots :
        LET o == caller[m].told IN
        (IsOutcome(o) /\ o[1] = "reward") => (o[4] = m[2] /\ o[3][m[2]] = caller[m].ans)

\* Rewards are relative: members judged together carry one verdict, in the server and at the callers.
SiblingsAgree ==
    /\ \A k \in Retained :
        LET co == core.cohort[k]
            rewarded == {i \in Index : co.out[i] # None}
        IN /\ co.phase \in {"collecting", "evaluating"} => (rewarded = {} /\ co.fail = None)
           /\ co.phase \in {"held", "completed"} => (rewarded = IF co.fail = None THEN Members(co) ELSE {})
           /\ co.phase = "failed" => (rewarded = {} /\ co.fail # None)
           /\ co.phase = "completed" => co.fail = None
    /\ \A m \in Slots : \A x \in Others(m) :
        LET o == caller[m].told
            p == caller[x].told
        IN (IsOutcome(o) /\ IsOutcome(p) /\ Grouped(m[1]) /\ caller[m].att = caller[x].att)
           => /\ o[2] = p[2] => (o[1] = p[1] /\ o[3] = p[3])
              /\ (o[3][x[2]] = caller[x].ans /\ p[3][m[2]] = caller[m].ans) => o[2] = p[2]

------------------------------------------------------------------------------
(* Steps. *)

\* A superseded attempt stays superseded across a crash.
WatermarkSurvivesRestoreStep ==
    Did("Restore") =>
        \A g \in DOMAIN world.newest : HasMark(core', g) /\ Mark(core', g).a >= world.newest[g]
WatermarkSurvivesRestore == [][WatermarkSurvivesRestoreStep]_vars

\* A member that was given its restored outcome, at once or when admission opened, is no longer at risk of a retire.
PendingIsUnclaimedStep ==
    LET pending(k, i) == k \in DOMAIN core'.cohort /\ i \in core'.cohort[k].pending IN
    /\ (Did("Submit") /\ ev'[3].reply[1] = "told") => ~ pending(ev'[2].cohort, ev'[2].index)
    /\ Did("OpenAdmission") => \A w \in ev'[3].answered : ~ pending(core.waiting[w].k, core.waiting[w].i)
PendingIsUnclaimed == [][PendingIsUnclaimedStep]_vars

\* Between prepare and resume no new outcome comes into the world.
NoOutcomeWhileClosedStep ==
    \A k \in Retained :
        (core.cohort[k].phase = "held" /\ ~ core.open /\ Did("Publish") /\ ev'[2].cohort = k)
        => (k \in DOMAIN core'.cohort /\ core'.cohort[k].phase = "held")
NoOutcomeWhileClosed == [][NoOutcomeWhileClosedStep]_vars

\* An answer has one outcome. Without a group id a crash may cost a second judging; that is known.
OutcomeStableStep ==
    \A m \in Slots :
        ( /\ IsOutcome(caller[m].told)
          /\ Grouped(m[1])
          /\ ~ Did("Crash")
          /\ caller[m].ans = caller'[m].ans
          /\ caller[m].att = caller'[m].att )
        => caller'[m].told = caller[m].told
OutcomeStable == [][OutcomeStableStep]_vars

\* The caller asks for the attempt that its group is at.
AtWatermark(m) == Grouped(m[1]) /\ (HasMark(core, m[1]) => Mark(core, m[1]).a <= caller[m].att)
Asks(m) == /\ Did("Submit")
           /\ SlotOf(ev'[2].waiter) = m
           /\ ev'[2].session # None
           /\ ev'[2].episode = EpisodeOf(m)
           /\ ~ core.down
           /\ AtWatermark(m)
           /\ OneSession(m)
\* It waits only because its record is younger than the export of the open checkpoint.
WaitsLate(m) == ev'[3].reply = Waits /\ SessionOf(m) \in DOMAIN core'.record /\ core'.record[SessionOf(m)].late

\* When one member wrote its verdict down, its siblings get theirs at once and unjudged, whatever crashed between.
RecordedImpliesRecoverableStep ==
    \A m \in Slots :
        Asks(m) =>
            \A x \in Others(m) :
                LET o == caller[x].told IN
                ( /\ caller[x].st \in {"recorded", "done"}
                  /\ caller[x].att = caller[m].att
                  /\ IsOutcome(o)
                  /\ o[3][m[2]] = caller[m].ans )
                => ( \/ ev'[3].reply[1] = "told" /\ IsOutcome(ev'[3].reply[2]) /\ ev'[3].reply[2][2] = o[2]
                     \/ WaitsLate(m) )
RecordedImpliesRecoverable == [][RecordedImpliesRecoverableStep]_vars

\* Who was told once is told again at once, before and after a crash.
ReplayNeverStallsStep ==
    \A m \in Slots :
        (Asks(m) /\ IsOutcome(caller[m].told)) => (ev'[3].reply = <<"told", caller[m].told>> \/ WaitsLate(m))
ReplayNeverStalls == [][ReplayNeverStallsStep]_vars

\* Answers whose verdict was there at the export are not judged again after the restore.
NeverJudgedTwiceStep ==
    (Did("Judged") \/ Did("JudgeFailed")) =>
        \A m \in Slots :
            ~ (caller[m].kept /\ caller[m].st = "verify" /\ KeyOf(m) = ev'[2].cohort /\ OneSession(m))
NeverJudgedTwice == [][NeverJudgedTwiceStep]_vars

\* The steps that hold the caps: all but those that are refused before.
Verifies == Did("Submit") /\ (ev'[3].reply[1] = "refused" => ev'[3].reply[2] \notin {"shutting_down", "stale_attempt"})

\* Memory is bounded: beyond the cap only what an open session or a waiting request needs. Of the watermarks beyond it
\* those go that were used least recently and whose group has nothing retained, and no others.
CapRespectedStep ==
    Verifies =>
        LET idle == {j \in DOMAIN core.marks : KeysOf(core, core.marks[j].g) \subseteq ev'[3].evicted}
            before(j) == Cardinality({h \in idle : h < j})
            surplus == Excess(Len(core.marks), Cap)
        IN /\ \A j \in 1 .. Excess(Len(core.term), Cap) : core.term[j] \in ev'[3].evicted \/ Needed(core, core.term[j])
           /\ \A j \in idle : core.marks[j].g = ev'[2].cohort[1] \/ (HasMark(core', core.marks[j].g) <=> before(j) >= surplus)
CapRespected == [][CapRespectedStep]_vars

\* No outcome goes while somebody may still ask for it.
NeededNeverDroppedStep ==
    (Serving /\ ~ Gone) =>
        \A k \in Retained \ DOMAIN core'.cohort :
            \A m \in Slots :
                ~ ( /\ Terminal(core.cohort[k])
                    /\ caller[m].st = "verify"
                    /\ caller'[m].st = "verify"
                    /\ KeyOf(m) = k
                    /\ Grouped(k[1])
                    /\ core.cohort[k].ans[m[2]] = caller[m].ans
                    /\ SessionOf(m) \in DOMAIN core.session
                    /\ OneSession(m) )
NeededNeverDropped == [][NeededNeverDroppedStep]_vars

\* Time does not run backwards for a group while anything of it is kept. By a retire or a deletion only a watermark
\* goes that a restore brought and nobody used since.
WatermarkMonotoneStep ==
    ~ Gone =>
        \A j \in DOMAIN core.marks :
            LET g == core.marks[j].g
                evicted == IF Did("Submit") THEN ev'[3].evicted ELSE {}
            IN (~ HasMark(core', g) \/ Mark(core', g).a < core.marks[j].a)
               => /\ KeysOf(core, g) \subseteq evicted \/ KeysOf(core', g) = {}
                  /\ (Did("Retire") \/ Did("DeleteRestored")) => core.marks[j].installed
WatermarkMonotone == [][WatermarkMonotoneStep]_vars

\* What was superseded is never published.
NoStaleAttemptPublishesStep ==
    (Did("Publish") /\ ev'[3].published) =>
        LET k == ev'[2].cohort IN Grouped(k[1]) => (HasMark(core, k[1]) /\ Mark(core, k[1]).a = k[2])
NoStaleAttemptPublishes == [][NoStaleAttemptPublishesStep]_vars

\* A conflict (start the group anew) is only for a slot that a session or a request holds, be it the asker's own, or whose
\* answer is being judged or was (a restored one once it was asked for). A slot that closed free is met only by who started
\* over, or asks with a new session. Without a group id a retire frees nothing; that is known.
NoFalseConflictStep ==
    (Did("Submit") /\ ev'[3].reply[1] = "refused" /\ Grouped(ev'[2].cohort[1])) =>
        LET a == ev'[2]
            k == a.cohort
            m == SlotOf(a.waiter)
        IN /\ ev'[3].reply[2] = "different_response" =>
                (HeldBy(core, k, a.index) \/ (core.cohort[k].phase # "collecting" /\ a.index \notin core.cohort[k].pending))
           /\ ev'[3].reply[2] = "slot_closed" => (caller[m].ans > 1 \/ ~ OneSession(m))
NoFalseConflict == [][NoFalseConflictStep]_vars

\* A retire does not wait for a judge, and leaves nobody of its attempts waiting, with a session or without.
RetireNeverWaitsForCohortStep ==
    Did("Retire") =>
        \A w \in DOMAIN core.waiting :
            (core.waiting[w].s \in ev'[3].ended \/ Retired(core', core.waiting[w].asked, core.waiting[w].ep))
            => w \notin DOMAIN core'.waiting
RetireNeverWaitsForCohort == [][RetireNeverWaitsForCohortStep]_vars

\* A retire frees no slot under somebody else's request or session.
NoForeignFreeStep ==
    Did("Retire") =>
        \A k \in Retained : \A i \in Members(core.cohort[k]) :
            (k \notin DOMAIN core'.cohort \/ core'.cohort[k].ans[i] = 0) =>
                /\ \A s \in Backers(core, k, i) : s \in ev'[3].ended
                /\ \A w \in WaitersOf(core, k) : core.waiting[w].i = i => w \in ev'[3].answered
NoForeignFree == [][NoForeignFreeStep]_vars

\* A retire or a deletion touches no sibling: what goes was held by a session that ended. And nothing that is decided
\* and was told: what goes was still collecting, or restored and not asked for yet.
ReplayedSurvivesRetireStep ==
    (Did("Retire") \/ Did("DeleteRestored")) =>
        LET ended == IF Did("Retire") THEN ev'[3].ended ELSE ev'[3] IN
        \A k \in Retained :
            /\ \A i \in Members(core.cohort[k]) :
                (k \notin DOMAIN core'.cohort \/ core'.cohort[k].ans[i] = 0) =>
                    /\ core.cohort[k].phase = "collecting" \/ i \in core.cohort[k].pending
                    /\ \/ \E s \in Backers(core, k, i) : s \in ended
                       \/ \E w \in WaitersOf(core, k) :
                            /\ core.waiting[w].i = i
                            /\ core.waiting[w].s \in ended \/ (Did("Retire") /\ w \in ev'[3].answered)
            /\ k \in DOMAIN core'.cohort =>
                core'.cohort[k].phase = core.cohort[k].phase /\ core'.cohort[k].fail = core.cohort[k].fail
ReplayedSurvivesRetire == [][ReplayedSurvivesRetireStep]_vars

\* A refused restore leaves the server as it was.
AllOrNothingRestoreStep == Did("RefuseRestore") => core' = core
AllOrNothingRestore == [][AllOrNothingRestoreStep]_vars

------------------------------------------------------------------------------
(* Liveness, under the fairness of FairSpec: tasks run, deadlines pass, checkpoints end. *)

Fairness ==
    /\ \A k \in Keys : /\ WF_vars(ExpireCollection(k))
                       /\ WF_vars(Judged(k) \/ JudgeFailed(k))
                       /\ SF_vars(Wake(k))
                       /\ SF_vars(Publish(k) /\ core.open)
                       /\ WF_vars(Expire(k))
    /\ \A g \in GroupNames : WF_vars(ExpireWatermark(g))
    /\ \A s \in Sessions : SF_vars(ExpireSession(s))
    /\ WF_vars(OpenAdmission)
    /\ WF_vars(Crash)
    /\ WF_vars(Restore)
    /\ WF_vars(CloseAdmission /\ world.phase = "crashed")
    /\ WF_vars(\E S \in Some({"new", "verify"}) : Retire(S) /\ world.phase = "failed")
FairSpec == Spec /\ Fairness

\* Nobody waits for ever: a verdict, a deadline, a newer attempt or a retire answers. A retire is one step here, so that
\* it ends needs no check; that its wait in the runtime ends is bounded by tests.
EveryWaitEnds == \A w \in WaiterIds : (w \in DOMAIN core.waiting) ~> (w \notin DOMAIN core.waiting)

\* A held outcome is published, or its cohort has failed otherwise.
HeldPublishes ==
    \A k \in Keys :
        (k \in Retained /\ core.cohort[k].phase = "held") ~> ~ (k \in Retained /\ core.cohort[k].phase = "held")

\* What nobody can ask for any more goes: sessions, cohorts, watermarks.
MemoryDrains ==
    (\A m \in Slots : caller[m].st \in {"recorded", "done"}) ~>
        (Retained = {} /\ core.marks = <<>> /\ DOMAIN core.session = {})
===============================================================================
