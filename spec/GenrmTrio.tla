------------------------------ MODULE GenrmTrio ------------------------------
(***************************************************************************)
(* The cohort server, its callers and its controller.                      *)
(*                                                                         *)
(* Part 1 is the server's state and one operator per core action: a pure   *)
(* function from a state to the next state, the reply, and what waiting    *)
(* requests were told. Part 2 is the world around it: callers that seed,   *)
(* verify, record and start over, checkpoints, crashes, and the tasks that *)
(* hold judged outcomes. Part 3 puts both together as actions; each sets   *)
(* ev to <<name, arguments, reply>>, which no guard reads.                 *)
(*                                                                         *)
(* Numbers stand for bodies: an answer is 1, 2, ...; starting over from    *)
(* the input gives the next one. A reward is                               *)
(* <<"reward", judge call, answers judged, index>>, so that whose it is and *)
(* on what it was judged can be compared; a judge failure is               *)
(* <<"judge", judge call, answers judged>>.                                *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    GroupNames,   \* the groups
    Ungrouped,    \* those whose members come without a group id
    Lone,         \* those of which only the first member ever comes: they can only time out
    N,            \* members per cohort
    Cap,          \* terminal cohorts (and watermarks) kept although nobody needs them; needed ones may exceed it
    MaxAttempt,   \* group attempts are 0 .. MaxAttempt
    MaxAnswer,    \* answers of a rollout within one attempt; with 1 it never starts over
    MaxCrash,     \* committed checkpoints that are followed by their crash
    MaxWaiters,   \* requests that may wait at once for one rollout
    Untyped,      \* groups whose sessions end by the verify reply (no close follows)
    World,        \* which optional behaviours of the world happen
    Mutants       \* rules that are broken on purpose; {} is the spec

Mutant(name) == name \in Mutants
May(name) == name \in World

Index == 0 .. N - 1
Empty == [x \in {} |-> 0]
None == <<>>                         \* no outcome, no session, no state

Put(f, k, v) == (k :> v) @@ f
Without(f, S) == [x \in DOMAIN f \ S |-> f[x]]
Min(a, b) == IF a < b THEN a ELSE b
Excess(n, cap) == IF n > cap THEN n - cap ELSE 0
IsIn(x, seq) == \E j \in DOMAIN seq : seq[j] = x

(***************************************************************************)
(* Part 1. The server.                                                     *)
(*                                                                         *)
(* cohort   key <<group, attempt>> -> [phase, ans, out, fail, pending]     *)
(*            ans: per index the answer that holds the slot, 0 when free   *)
(*            out: per index its own result; fail: why the cohort failed   *)
(*            pending: restored members that have not replayed             *)
(* term     the keys of the terminal cohorts, oldest first                 *)
(* marks    the watermarks, least recently used first: [g, a, installed]   *)
(* session  open session -> [ep, claimed, ending]; ep = <<rollout, number>> *)
(* record   session -> [k, i, late]: the member that it backs              *)
(* waiting  waiter -> [k, i, s, asked, ep]: what it waits for, its open     *)
(*            session, and the session and episode that it came with       *)
(* open     whether admission is open                                      *)
(* exporting, exported   the open checkpoint's export: begun; of whom      *)
(* retired  rollout -> newest retired episode attempt                      *)
(* refused  id of a retired session -> its rollout                         *)
(* shut     ids of closed sessions                                         *)
(* down     the server has shut down                                       *)
(***************************************************************************)

Fresh == [cohort |-> Empty, term |-> <<>>, marks |-> <<>>, session |-> Empty, record |-> Empty,
          waiting |-> Empty, open |-> TRUE, exporting |-> FALSE, exported |-> {}, retired |-> Empty,
          refused |-> Empty, shut |-> {}, down |-> FALSE]

Active(co) == co.phase \in {"collecting", "evaluating", "held"}
Terminal(co) == co.phase \in {"completed", "failed"}
Members(co) == {i \in Index : co.ans[i] # 0}
Told(co, i) == IF co.fail # None THEN co.fail ELSE co.out[i]

CohortFailure(code) == <<"cohort", code>>
IsOutcome(o) == o # None /\ o[1] \in {"reward", "judge"}

Grouped(g) == g \notin Ungrouped
KeysOf(c, g) == {k \in DOMAIN c.cohort : k[1] = g}
Backers(c, k, i) == {s \in DOMAIN c.record : c.record[s].k = k /\ c.record[s].i = i}
SessionsOf(c, k) == {s \in DOMAIN c.record : c.record[s].k = k}
WaitersOf(c, k) == {w \in DOMAIN c.waiting : c.waiting[w].k = k}
HeldBy(c, k, i) == \/ Backers(c, k, i) # {}
                   \/ \E w \in WaitersOf(c, k) : c.waiting[w].i = i

MarksOf(c, g) == {j \in DOMAIN c.marks : c.marks[j].g = g}
HasMark(c, g) == MarksOf(c, g) # {}
Mark(c, g) == c.marks[CHOOSE j \in MarksOf(c, g) : TRUE]

\* A terminal cohort stays while a member session is open, or a request waits for it.
Needed(c, k) == \/ WaitersOf(c, k) # {}
                \/ \E s \in SessionsOf(c, k) : s \in DOMAIN c.session

------------------------------------------------------------------------------
(* What a step hands back: the next state, the reply, and per answered waiter *)
(* the attempt it asked for, its outcome, and the session it came with.       *)
Result(c, reply, told) == [core |-> c, reply |-> reply, told |-> told]
Quiet(c, reply) == Result(c, reply, Empty)

Heard(c, w, o) == [a |-> c.waiting[w].k[2], o |-> o, s |-> c.waiting[w].s]
AnswersOf(c, k) == [w \in WaitersOf(c, k) |-> Heard(c, w, Told(c.cohort[k], c.waiting[w].i))]

\* Tell every waiter of a terminal cohort; a restored member has replayed by that.
AnswerAll(c, k) ==
    LET ws == WaitersOf(c, k) IN
    [c EXCEPT !.waiting = Without(@, ws),
              !.cohort[k].pending = @ \ {c.waiting[w].i : w \in ws}]

\* The session's record ends. A pending member that nobody backs any more becomes an ordinary one.
Unrecord(c, s) ==
    IF s \notin DOMAIN c.record THEN c ELSE
    LET r == c.record[s]
        d == [c EXCEPT !.record = Without(@, {s})]
    IN IF r.k \in DOMAIN c.cohort /\ r.i \in c.cohort[r.k].pending /\ Backers(d, r.k, r.i) = {}
       THEN [d EXCEPT !.cohort[r.k].pending = @ \ {r.i}]
       ELSE d

\* Let an open session back this member, and only this one. Without a group id nothing is recorded.
Record_(c, s, k, i) ==
    IF \/ s \notin DOMAIN c.session
       \/ (~ Grouped(k[1]) /\ ~ Mutant("UngroupedRecorded"))
       \/ (s \in DOMAIN c.record /\ c.record[s].k = k /\ c.record[s].i = i)
       \/ (Mutant("ReplayNotRecorded") /\ c.cohort[k].ans[i] # 0 /\ ~ Active(c.cohort[k]))
    THEN c
    ELSE LET d == Unrecord(c, s) IN
         [d EXCEPT !.record = Put(@, s, [k |-> k, i |-> i, late |-> c.exporting /\ ~ Mutant("LateToldAtOnce")])]

\* An open session ends, its record first; its waiting requests go on without it.
End(c, s) ==
    LET d == Unrecord(c, s) IN
    [d EXCEPT !.session = Without(@, {s}),
              !.waiting = [w \in DOMAIN @ |-> IF @[w].s = s THEN [@[w] EXCEPT !.s = None] ELSE @[w]]]

RECURSIVE EndAll(_, _)
EndAll(c, S) == IF S = {} THEN c ELSE LET s == CHOOSE x \in S : TRUE IN EndAll(End(c, s), S \ {s})

\* Cohorts go, with exactly their records; their groups' watermarks stay.
DropCohorts(c, K) ==
    IF K = {} THEN c ELSE
    [c EXCEPT !.cohort = Without(@, K),
              !.term = SelectSeq(@, LAMBDA k : k \notin K),
              !.waiting = Without(@, {w \in DOMAIN @ : @[w].k \in K}),
              !.record = IF Mutant("DropLeaksSessions") THEN @
                         ELSE Without(@, {s \in DOMAIN @ : @[s].k \in K})]

\* As age or count has it: a watermark that this leaves alone ends by age, too, like any other.
Evict(c, K) ==
    LET d == DropCohorts(c, K)
        left == {k[1] : k \in K} \ {k[1] : k \in DOMAIN d.cohort}
    IN [d EXCEPT !.marks = [j \in DOMAIN @ |-> IF @[j].g \in left THEN [@[j] EXCEPT !.installed = FALSE] ELSE @[j]]]

DropMarks(c, G) == [c EXCEPT !.marks = SelectSeq(@, LAMBDA m : m.g \notin G)]

\* Free a slot. A cohort left without members goes, and then a watermark that only its restore installed.
DropMember(c, k, i) ==
    LET d == [c EXCEPT !.cohort[k].ans[i] = 0, !.cohort[k].out[i] = None, !.cohort[k].pending = @ \ {i}] IN
    IF Members(d.cohort[k]) # {} \/ Mutant("RetireKeepsEmptyCohort") THEN d
    ELSE LET e == DropCohorts(d, {k}) IN
         IF /\ HasMark(e, k[1])
            /\ \/ KeysOf(e, k[1]) = {} /\ (Mark(e, k[1]).installed \/ Mutant("RetireForgetsWatermark"))
               \/ Mutant("RetireDropsLiveWatermark")
            /\ ~ Mutant("RetireKeepsWatermark")
         THEN DropMarks(e, {k[1]}) ELSE e

\* Hold the caps: of the oldest terminal cohorts beyond it those go that nobody needs; then the least recently
\* used watermarks of groups without a retained cohort.
Evicted(c) ==
    LET oldest == {c.term[j] : j \in 1 .. Excess(Len(c.term), Cap)} IN
    IF Mutant("EvictNeededByCount") THEN oldest
    ELSE IF Mutant("KeepAnyMember") THEN {k \in oldest : Members(c.cohort[k]) = {}}
    ELSE {k \in oldest : ~ Needed(c, k)}

PruneMarks(c) ==
    LET idle == SelectSeq(c.marks, LAMBDA m : Mutant("WatermarkNotKept") \/ KeysOf(c, m.g) = {})
        surplus == IF Mutant("WatermarksUncapped") THEN 0 ELSE Min(Excess(Len(c.marks), Cap), Len(idle))
        from == IF Mutant("WatermarkOrder") THEN Len(idle) - surplus ELSE 0
    IN DropMarks(c, {idle[from + j].g : j \in 1 .. surplus})

Prune(c) == PruneMarks(Evict(c, Evicted(c)))

\* A `/verify` of the group passed the stale check: its watermark is raised or refreshed.
UseMark(c, g, a) ==
    LET others == SelectSeq(c.marks, LAMBDA m : m.g # g)
        top == IF HasMark(c, g) /\ Mark(c, g).a > a THEN Mark(c, g).a ELSE a
    IN [c EXCEPT !.marks = Append(others, [g |-> g, a |-> top, installed |-> FALSE])]

\* An active cohort fails at once, held or not; its waiters are told.
FailCohort(c, k, failure) ==
    LET d == [c EXCEPT !.cohort[k] = [@ EXCEPT !.phase = "failed", !.fail = failure, !.out = [i \in Index |-> None]],
                       !.term = IF Mutant("TermListStale") THEN @ ELSE Append(@, k)]
    IN [core |-> AnswerAll(d, k), told |-> AnswersOf(d, k)]

\* A request that uses a session, under the attempt that the session is bound to, claims it.
Use(c, s, ep) ==
    IF s \in DOMAIN c.session /\ ep \in {None, c.session[s].ep} THEN [c EXCEPT !.session[s].claimed = TRUE] ELSE c

Retired(c, s, ep) ==
    \/ s \in DOMAIN c.refused
    \/ ep # None /\ ep[1] \in DOMAIN c.retired /\ ep[2] <= c.retired[ep[1]]
\* Its session has moved on to a later attempt.
Over(c, s, ep) == ep # None /\ s \in DOMAIN c.session /\ c.session[s].ep[1] = ep[1] /\ ep[2] < c.session[s].ep[2]
Stale(c, s, ep) == Retired(c, s, ep) \/ Over(c, s, ep)

------------------------------------------------------------------------------
(* Submit: contract 5.2, from the sixth check on. *)

Replied(reply, evicted, superseded) == [reply |-> reply, evicted |-> evicted, superseded |-> superseded]
Waits == <<"waits">>
Refused(code) == <<"refused", code>>

\* `by`: the session and the episode that the request came with.
Wait(c, w, k, i, by) ==
    [c EXCEPT !.waiting = Put(@, w, [k |-> k, i |-> i, s |-> IF by.s \in DOMAIN c.session THEN by.s ELSE None,
                                     asked |-> by.s, ep |-> by.ep])]

\* Check 12: wait with the others, or be told what is stored. A record made after the export waits for resume.
Attach(c, w, by, k, i) ==
    LET d == Record_(c, by.s, k, i)
        co == d.cohort[k]
        late == by.s \in DOMAIN d.record /\ d.record[by.s].late /\ ~ (co.fail # None /\ co.fail[1] = "cohort")
    IN IF Active(co) \/ late
       THEN [core |-> Wait(d, w, k, i, by), reply |-> Waits]
       ELSE [core |-> IF Mutant("ReplayStaysPending") THEN d ELSE [d EXCEPT !.cohort[k].pending = @ \ {i}],
             reply |-> <<"told", Told(co, i)>>]

NewCohort == [phase |-> "collecting", ans |-> [i \in Index |-> 0], out |-> [i \in Index |-> None],
              fail |-> None, pending |-> {}]

\* Checks 9 to 14, for a cohort that is there.
Join(c, w, by, k, i, answer) ==
    LET co == c.cohort[k]
        taken == [c EXCEPT !.cohort[k].ans[i] = answer]
    IN IF co.phase = "failed" THEN
            IF co.ans[i] # 0 THEN Attach(c, w, by, k, i)
            ELSE IF co.fail[1] = "cohort" THEN [core |-> c, reply |-> <<"told", co.fail>>]
            ELSE Attach(taken, w, by, k, i)
       ELSE IF co.ans[i] # 0 THEN
            IF co.ans[i] # answer /\ ~ Mutant("DigestIgnored")
            THEN [core |-> c, reply |-> Refused("different_response")]
            ELSE Attach(c, w, by, k, i)
       ELSE IF co.phase # "collecting" THEN [core |-> c, reply |-> Refused("slot_closed")]
       ELSE LET d == Wait(Record_(taken, by.s, k, i), w, k, i, by)
                full == Members(d.cohort[k]) = Index
            IN [core |-> IF full THEN [d EXCEPT !.cohort[k].phase = "evaluating"] ELSE d, reply |-> Waits]

DoSubmit(c, w, s, ep, k, i, answer) ==
    IF c.down THEN Quiet(c, Replied(Refused("shutting_down"), {}, {}))
    ELSE IF Stale(c, s, ep) THEN Quiet(c, Replied(Refused("stale_attempt"), {}, {}))
    ELSE
    LET g == k[1]
        used == Use(c, s, ep)
        evicted == Evicted(used)
        pruned == Prune(used)
        newest == IF HasMark(pruned, g) THEN Mark(pruned, g).a ELSE k[2]
    IN IF Grouped(g) /\ k[2] < newest /\ ~ Mutant("StaleAccepted")
       THEN Quiet(pruned, Replied(Refused("superseded"), evicted, {}))
       ELSE
       LET marked == IF Grouped(g) THEN UseMark(pruned, g, k[2]) ELSE pruned
           older == IF Grouped(g) /\ ~ Mutant("NoSupersede")
                    THEN {o \in KeysOf(marked, g) : o[2] < k[2] /\ Active(marked.cohort[o])} ELSE {}
           \* At most one attempt of a group is active.
           failed == IF older = {} THEN [core |-> marked, told |-> Empty]
                     ELSE FailCohort(marked, CHOOSE o \in older : TRUE, CohortFailure("superseded"))
           heard == IF Mutant("SupersedeLeavesWaiters")
                    THEN [core |-> [failed.core EXCEPT !.waiting = marked.waiting], told |-> Empty] ELSE failed
           known == IF k \in DOMAIN heard.core.cohort THEN heard.core
                    ELSE [heard.core EXCEPT !.cohort = Put(@, k, NewCohort)]
           joined == Join(known, w, [s |-> s, ep |-> ep], k, i, answer)
       IN Result(joined.core, Replied(joined.reply, evicted, older), heard.told)

DoLeave(c, w) == Quiet([c EXCEPT !.waiting = Without(@, {w})], w \in DOMAIN c.waiting)

------------------------------------------------------------------------------
(* A cohort's life. *)

CanExpireCollection(c, k) == k \in DOMAIN c.cohort /\ c.cohort[k].phase = "collecting"
DoFail(c, k, code) ==
    LET f == FailCohort(c, k, CohortFailure(code)) IN Result(f.core, [answered |-> WaitersOf(c, k)], f.told)

CanJudge(c, k) == k \in DOMAIN c.cohort /\ c.cohort[k].phase = "evaluating"
DoJudged(c, k, results) == Quiet([c EXCEPT !.cohort[k] = [@ EXCEPT !.phase = "held", !.out = results]], None)
DoJudgeFailed(c, k, failure) == Quiet([c EXCEPT !.cohort[k] = [@ EXCEPT !.phase = "held", !.fail = failure]], None)

\* Closed is checked again in the very step that publishes.
CanPublish(c, k) == k \in DOMAIN c.cohort /\ c.cohort[k].phase = "held"
PublishesClosed(c, k) == \/ Mutant("NoRecheck")
                         \/ Mutant("NoHold")
                         \/ Mutant("JudgeFailureNotHeld") /\ c.cohort[k].fail # None
DoPublish(c, k) ==
    IF ~ c.open /\ ~ PublishesClosed(c, k) THEN Quiet(c, [published |-> FALSE, answered |-> {}]) ELSE
    LET co == c.cohort[k]
        phase == IF co.fail = None THEN "completed" ELSE "failed"
        d == [c EXCEPT !.cohort[k].phase = phase,
                       !.term = IF Mutant("TermListStale") THEN @ ELSE Append(@, k)]
        told == IF Mutant("PerMemberKind") /\ co.fail # None
                THEN [w \in WaitersOf(c, k) |->
                        Heard(c, w, IF c.waiting[w].i = 0 THEN co.fail
                                    ELSE <<"reward", co.fail[2], co.ans, c.waiting[w].i>>)]
                ELSE AnswersOf(d, k)
        e == AnswerAll(d, k)
        gone == phase = "completed" /\ ~ Grouped(k[1]) /\ ~ Mutant("UngroupedNotPopped")
    IN Result(IF gone THEN DropCohorts(e, {k}) ELSE e, [published |-> TRUE, answered |-> WaitersOf(c, k)], told)

------------------------------------------------------------------------------
(* Retention. *)

\* By age the oldest goes first; those that are needed are passed over.
Unneeded(c) == SelectSeq(c.term, LAMBDA k : ~ Needed(c, k) \/ (Mutant("EvictNeededByAge") /\ WaitersOf(c, k) = {}))
CanExpire(c, k) == Len(Unneeded(c)) > 0 /\ Unneeded(c)[1] = k /\ ~ Mutant("TtlNever")
DoExpire(c, k) == Quiet(Evict(c, {k}), None)

Idle(c) == SelectSeq(c.marks, LAMBDA m : KeysOf(c, m.g) = {} \/ Mutant("ExpireWatermarkWhileRetained"))
CanExpireWatermark(c, g) == Len(Idle(c)) > 0 /\ Idle(c)[1].g = g
DoExpireWatermark(c, g) == Quiet(DropMarks(c, {g}), None)

\* An idle session ends as if closed, so not while admission is closed.
CanExpireSession(c, s) == /\ s \in DOMAIN c.session
                          /\ c.open \/ Mutant("IdleWhileClosed")
                          /\ \A w \in DOMAIN c.waiting : c.waiting[w].s # s
                          /\ ~ Mutant("SessionNeverIdles")
DoExpireSession(c, s) == Quiet(End(c, s), None)

------------------------------------------------------------------------------
(* Sessions. *)

DoSeed(c, s, ep) ==
    IF c.down THEN Quiet(c, "shutting_down")
    ELSE IF Stale(c, s, ep) THEN Quiet(c, "stale_attempt")
    ELSE IF s \notin DOMAIN c.session /\ s \in c.shut /\ ~ Mutant("ClosedSeedBinds") THEN Quiet(c, "closed")
    ELSE Quiet([c EXCEPT !.session = Put(@, s, [ep |-> ep, claimed |-> TRUE, ending |-> FALSE])], "bound")

DoUseSession(c, s, ep) == IF Stale(c, s, ep) THEN Quiet(c, FALSE) ELSE Quiet(Use(c, s, ep), TRUE)

\* What comes under an attempt that the session left behind ends nothing.
DoEndSession(c, s, ep, by) ==
    LET known == s \in DOMAIN c.session
        later == known /\ by = "verify" /\ ~ c.open /\ ~ Mutant("EndWhileClosed")
        d == IF later THEN [c EXCEPT !.session[s].ending = TRUE] ELSE IF known THEN End(c, s) ELSE c
    IN IF Over(c, s, ep) /\ ~ Mutant("LateReplyEndsNewAttempt") THEN Quiet(c, "stale")
       ELSE Quiet(IF by = "close" /\ ~ c.down THEN [d EXCEPT !.shut = @ \cup {s}] ELSE d,
                  IF later THEN "later" ELSE IF known THEN "ended" ELSE "unknown")

------------------------------------------------------------------------------
(* Admission and checkpoints. *)

DoCloseAdmission(c) == Quiet([c EXCEPT !.open = FALSE, !.exporting = FALSE, !.exported = {}], None)

\* Late requests are told, and sessions whose verify reply went out meanwhile end.
DoOpenAdmission(c) ==
    LET late == {w \in DOMAIN c.waiting : Terminal(c.cohort[c.waiting[w].k])}
        told == [w \in late |-> Heard(c, w, Told(c.cohort[c.waiting[w].k], c.waiting[w].i))]
        ended == {s \in DOMAIN c.session : c.session[s].ending}
        answered(k) == {c.waiting[w].i : w \in {x \in late : c.waiting[x].k = k}}
        d == [c EXCEPT !.open = TRUE, !.exporting = FALSE, !.exported = {},
                       !.waiting = Without(@, late),
                       !.cohort = [k \in DOMAIN @ |-> [@[k] EXCEPT !.pending = IF Mutant("LateReplayStaysPending") THEN @
                                                                             ELSE @ \ answered(k)]],
                       !.record = [s \in DOMAIN @ |-> [@[s] EXCEPT !.late = FALSE]]]
    IN Result(EndAll(d, ended), [answered |-> late, ended |-> ended], told)

\* The state of a session: its member's own outcome if there is one to keep, else None.
Kept(co) == \/ co.phase = "completed" /\ ~ Mutant("CompletedNotExported")
            \/ co.phase = "failed" /\ co.fail[1] = "judge" /\ ~ Mutant("JudgeFailureNotExported")
            \/ co.phase = "held" /\ ~ Mutant("HeldNotExported")
Saved(c, s) ==
    LET r == c.record[s]
        co == c.cohort[r.k]
        of == IF Mutant("ExportSibling") THEN CHOOSE i \in Members(co) : \A j \in Members(co) : i <= j ELSE r.i
        torn == Mutant("ExportTearsGroup") /\ \E x \in SessionsOf(c, r.k) : c.record[x].i < r.i
    IN IF ~ Kept(co) \/ torn THEN None
       ELSE [k |-> r.k, i |-> r.i, answer |-> co.ans[r.i], outcome |-> Told(co, of),
             newest |-> IF Mutant("WatermarkNotExported") THEN r.k[2] ELSE Mark(c, r.k[1]).a]

\* One group's open sessions in one step; or, with S, those that are left over.
Export_(c, S, kept) == 
    LET T == {s \in S : s \in DOMAIN c.session /\ s \notin c.exported} IN
    Quiet([c EXCEPT !.exporting = TRUE, !.exported = @ \cup T],
          [s \in T |-> [ep |-> c.session[s].ep, state |-> IF kept THEN Saved(c, s) ELSE None]])
DoExport(c, g) == Export_(c, {s \in DOMAIN c.record : c.record[s].k[1] = g}, TRUE)
DoExportRest(c, S) == Export_(c, S, FALSE)

\* Everything in one step. Sessions are bound to the next attempt of their episode, and unclaimed.
\* `order` lists the saved cohorts, first to be evicted first.
Restored(states, order) ==
    LET backed == {s \in DOMAIN states : states[s].state # None}
        of(k) == {s \in backed : states[s].state.k = k}
        at(k, i) == {s \in of(k) : states[s].state.i = i}
        some(S) == states[CHOOSE s \in S : TRUE].state
        cohort(k) ==
            LET failed == some(of(k)).outcome[1] = "judge" IN
            [phase |-> IF Mutant("RestoreAsCollecting") THEN "collecting" ELSE IF failed THEN "failed" ELSE "completed",
             ans |-> [i \in Index |-> IF at(k, i) = {} THEN 0 ELSE some(at(k, i)).answer],
             out |-> [i \in Index |-> IF at(k, i) = {} \/ failed \/ Mutant("RestoreAsCollecting") THEN None
                                      ELSE some(at(k, i)).outcome],
             fail |-> IF failed /\ ~ Mutant("RestoreAsCollecting") THEN some(of(k)).outcome ELSE None,
             pending |-> {i \in Index : at(k, i) # {}}]
        first(j) == \A h \in 1 .. j - 1 : order[h][1] # order[j][1]
        mark(j) == [g |-> order[j][1], a |-> some(of(order[j])).newest, installed |-> TRUE]
        firsts == SelectSeq([j \in DOMAIN order |-> j], first)
    IN [Fresh EXCEPT
        !.open = FALSE,
        !.cohort = [k \in {order[j] : j \in DOMAIN order} |-> cohort(k)],
        !.term = IF Mutant("RestoreAsCollecting") THEN <<>> ELSE order,
        !.marks = IF Mutant("RestoreNoWatermark") THEN <<>> ELSE [h \in DOMAIN firsts |-> mark(firsts[h])],
        !.session = [s \in DOMAIN states |-> [ep |-> <<states[s].ep[1], states[s].ep[2] + 1>>,
                                              claimed |-> FALSE, ending |-> FALSE]],
        !.record = [s \in IF Mutant("RestoreForgetsSessions") THEN {} ELSE backed |->
                        [k |-> states[s].state.k, i |-> states[s].state.i, late |-> FALSE]]]
DoRestore(c, states, order) ==
    LET r == Restored(states, order) IN
    Quiet([r EXCEPT !.retired = c.retired, !.refused = Without(c.refused, DOMAIN states),
                    !.shut = c.shut \ DOMAIN states], None)
DoRefuseRestore(c, states, order) ==
    Quiet(IF Mutant("PartialRestore") THEN [Restored(states, order) EXCEPT !.open = c.open] ELSE c, None)

\* One session of a retired rollout: its waits are answered, its record ends, what only it held is freed.
RetireSession(c, s) ==
    LET ws == {w \in DOMAIN c.waiting : c.waiting[w].s = s}
        r == IF s \in DOMAIN c.record THEN {c.record[s]} ELSE {}
        held == {[k |-> x.k, i |-> x.i] : x \in r} \cup {[k |-> c.waiting[w].k, i |-> c.waiting[w].i] : w \in ws}
        waits == IF Mutant("RetireWaitsForCohort") THEN c
                 ELSE [c EXCEPT !.waiting = Without(@, ws)]
        pending == \E x \in r : \/ x.i \in c.cohort[x.k].pending
                                \/ Mutant("RetireDropsReplayed") /\ Terminal(c.cohort[x.k])
        d == IF Mutant("RetireLeaksSession") THEN waits ELSE Unrecord(waits, s)
        e == IF pending /\ ~ Mutant("RetireNoop") /\ (\A x \in r : ~ HeldBy(d, x.k, x.i))
             THEN LET x == CHOOSE x \in r : TRUE IN
                  IF Mutant("RetireDropsCohort") THEN DropCohorts(d, {x.k}) ELSE DropMember(d, x.k, x.i)
             ELSE IF Mutant("RetireNoop") /\ pending
             THEN LET x == CHOOSE x \in r : TRUE IN [d EXCEPT !.cohort[x.k].pending = @ \cup {x.i}]
             ELSE d
        free == {x \in held : /\ x.k \in DOMAIN e.cohort
                              /\ Grouped(x.k[1])
                              /\ e.cohort[x.k].phase = "collecting"
                              /\ e.cohort[x.k].ans[x.i] # 0
                              /\ (Mutant("LiveRetireFreesShared") \/ ~ HeldBy(e, x.k, x.i))
                              /\ ~ Mutant("LiveRetireKeepsSlot")
                              /\ ~ Mutant("RetireNoop")}
        \* A session's waiters and its record name one slot, or its earlier and its latest.
        f == IF free = {} THEN e
             ELSE LET x == CHOOSE x \in free : TRUE
                      one == DropMember(e, x.k, x.i)
                      rest == {y \in free \ {x} : y.k \in DOMAIN one.cohort}
                  IN IF rest = {} THEN one
                     ELSE LET y == CHOOSE y \in rest : TRUE IN DropMember(one, y.k, y.i)
    IN [core |-> [f EXCEPT !.session = Without(@, {s}),
                           !.refused = Put(@, s, c.session[s].ep[1]),
                           !.waiting = [w \in DOMAIN @ |-> IF @[w].s = s THEN [@[w] EXCEPT !.s = None] ELSE @[w]]],
        answered |-> IF Mutant("RetireWaitsForCohort") THEN {} ELSE ws]

RECURSIVE RetireAll(_, _)
RetireAll(r, S) ==
    IF S = {} THEN r
    ELSE LET s == CHOOSE x \in S : TRUE
             one == RetireSession(r.core, s)
         IN RetireAll([core |-> one.core, answered |-> r.answered \cup one.answered], S \ {s})

\* A slot of a collecting cohort with a group id goes when nobody holds it any more.
RECURSIVE FreeAll(_, _)
FreeAll(c, S) ==
    IF S = {} THEN c ELSE
    LET x == CHOOSE x \in S : TRUE
        frees == /\ x[1] \in DOMAIN c.cohort
                 /\ Grouped(x[1][1])
                 /\ c.cohort[x[1]].phase = "collecting"
                 /\ c.cohort[x[1]].ans[x[2]] # 0
                 /\ ~ HeldBy(c, x[1], x[2])
    IN FreeAll(IF frees THEN DropMember(c, x[1], x[2]) ELSE c, S \ {x})

DoRetire(c, episodes) ==
    LET sessions == {s \in DOMAIN c.session : \E e \in episodes : c.session[s].ep[1] = e[1] /\ c.session[s].ep[2] <= e[2]}
        rollouts == {e[1] : e \in episodes}
        upto(r) == CHOOSE n \in {e[2] : e \in {x \in episodes : x[1] = r}} : \A e \in episodes : e[1] = r => e[2] <= n
        before(r) == IF r \in DOMAIN c.retired THEN c.retired[r] ELSE 0
        marked == [c EXCEPT !.retired = [r \in rollouts |-> IF before(r) > upto(r) THEN before(r) ELSE upto(r)] @@ @]
        all == RetireAll([core |-> marked, answered |-> {}], sessions)
        \* Besides, the waits of those attempts that no open session carries.
        d == all.core
        left == IF Mutant("RetireMissesUnboundWaits") \/ Mutant("RetireWaitsForCohort") THEN {}
                ELSE {w \in DOMAIN d.waiting : Retired(d, d.waiting[w].asked, d.waiting[w].ep)}
        e == [d EXCEPT !.waiting = Without(@, left)]
        free == {<<d.waiting[w].k, d.waiting[w].i>> : w \in left}
    IN Quiet(FreeAll(e, free), [ended |-> sessions, answered |-> all.answered \cup left])

\* Of these sessions, which a commit left out of its scope, those go that were restored and that nobody claimed, and
\* the members that only they backed.
RECURSIVE DeleteAll(_, _)
DeleteAll(c, S) ==
    IF S = {} THEN c ELSE
    LET s == CHOOSE x \in S : TRUE
        r == IF s \in DOMAIN c.record THEN {c.record[s]} ELSE {}
        pending == \E x \in r : x.i \in c.cohort[x.k].pending
        d == Unrecord(c, s)
        e == IF pending /\ (\A x \in r : ~ HeldBy(d, x.k, x.i))
             THEN LET x == CHOOSE x \in r : TRUE IN DropMember(d, x.k, x.i) ELSE d
        f == End(e, s)
    IN DeleteAll(IF Mutant("DropLeaksSessions") THEN [f EXCEPT !.record = c.record] ELSE f, S \ {s})
DoDeleteRestored(c, S) ==
    LET gone == {s \in S : s \in DOMAIN c.session /\ ~ c.session[s].claimed} IN
    Quiet(DeleteAll(c, gone), gone)

DoForget(c, rollouts) ==
    Quiet([c EXCEPT !.retired = Without(@, rollouts),
                    !.refused = Without(@, {s \in DOMAIN @ : @[s] \in rollouts})], None)

DoShutDown(c) ==
    Result([Fresh EXCEPT !.down = TRUE, !.open = c.open, !.exporting = c.exporting, !.exported = c.exported,
                         !.session = IF Mutant("CloseKeepsSessions") THEN c.session ELSE Empty],
           [answered |-> DOMAIN c.waiting],
           [w \in DOMAIN c.waiting |-> Heard(c, w, CohortFailure("shutting_down"))])

(***************************************************************************)
(* Part 2. The world.                                                      *)
(*                                                                         *)
(* caller   slot <<group, index>> -> the rollout that drives it:           *)
(*            att, ans: its group attempt and its answer                   *)
(*            ep, sid: its episode attempt and the number of its session   *)
(*            st: "new", "verify" (its answer is there), "recorded",       *)
(*                "done", "retired"                                        *)
(*            told: the last outcome it was told for this answer           *)
(*            via: the number of the session by which it was told           *)
(*            kept: its answer was judged and exported before the crash    *)
(* task     held cohort -> "asleep" until admission opens, then "awake"    *)
(* world    phase: "idle", "prepare", "committed", "written", "crashed",   *)
(*            "restoring", "restored", "failed" (a restore that was given  *)
(*            up everywhere)                                               *)
(*          states, order: what was exported; plan: groups still to export *)
(*          cap: callers as captured by their own server                   *)
(*          crashes: how many there were                                   *)
(*          judged, newest: at the export, the slots whose session has an  *)
(*            outcome, and the watermarks of their groups (for checks only) *)
(***************************************************************************)
VARIABLES core, caller, task, world, ev
vars == <<core, caller, task, world, ev>>

Slots == {m \in GroupNames \X Index : m[1] \in Lone => m[2] = 0}
Keys == GroupNames \X (0 .. MaxAttempt)
SlotOf(s) == <<s[1], s[2]>>           \* of a session or a waiter
SessionOf(m) == <<m[1], m[2], caller[m].sid>>
EpisodeOf(m) == <<m, caller[m].ep>>
KeyOf(m) == <<m[1], caller[m].att>>
\* A waiter's number tells of which answer's life it is, so that nobody hears what an earlier life was told.
WaiterOf(m, n) == <<m[1], m[2], n + MaxWaiters * (caller[m].ans - 1)>>
OfThisLife(w) == (w[3] - 1) \div MaxWaiters = caller[SlotOf(w)].ans - 1

NewCaller == [att |-> 0, ans |-> 1, ep |-> 0, sid |-> 1, st |-> "new", told |-> None, via |-> 0, kept |-> FALSE]
NewWorld == [phase |-> "idle", states |-> Empty, order |-> <<>>, plan |-> {}, cap |-> Empty, crashes |-> 0, judged |-> {}, newest |-> Empty]

\* In the larger models the first seeds are behind us.
Seeded == [Fresh EXCEPT !.session = [s \in {<<m[1], m[2], 1>> : m \in Slots} |->
                                        [ep |-> <<<<s[1], s[2]>>, 0>>, claimed |-> TRUE, ending |-> FALSE]]]

Init == /\ core = IF May("start seeded") THEN Seeded ELSE Fresh
        /\ caller = [m \in Slots |-> IF May("start seeded") THEN [NewCaller EXCEPT !.st = "verify"] ELSE NewCaller]
        /\ task = Empty
        /\ world = NewWorld
        /\ ev = <<"Init", None, None>>

\* Callers hear what their waiting requests of the attempt they are at were told.
Hear(told) ==
    [m \in Slots |->
        LET ws == {w \in DOMAIN told : SlotOf(w) = m /\ told[w].a = caller[m].att /\ OfThisLife(w)} IN
        IF ws = {} \/ caller[m].st # "verify" THEN caller[m]
        ELSE LET one == told[CHOOSE w \in ws : TRUE] IN
             [caller[m] EXCEPT !.told = one.o, !.via = IF one.s = None THEN @ ELSE one.s[3]]]

\* A held cohort's task goes with its cohort.
Tasks(c) == [k \in {k \in DOMAIN c.cohort : c.cohort[k].phase = "held"} |->
                IF k \in DOMAIN task THEN task[k] ELSE "asleep"]

\* While no server is there, or it is being restored, nothing of a caller gets through.
Serving == world.phase \in {"idle", "prepare", "committed", "written", "restored"}
\* A retire is for an idle server, or for what was just restored; never between prepare and resume.
Retiring == world.phase \in {"idle", "restored"} \/ (Mutant("RetireDuringCommit") /\ world.phase = "prepare")

\* One action of the core: its state, who heard what, its event.
Act(r, name, args) ==
    /\ core' = r.core
    /\ task' = Tasks(r.core)
    /\ ev' = <<name, args, r.reply>>

UsedCalls(k) ==
    LET of(o) == IF IsOutcome(o) THEN {o[2]} ELSE {}
        callers == {caller[m] : m \in {m \in Slots : m[1] = k[1]}} \cup {world.cap[m] : m \in {m \in DOMAIN world.cap : m[1] = k[1]}}
        saved == {world.states[s].state : s \in DOMAIN world.states}
    IN UNION ({of(x.told) : x \in callers} \cup {of(x.outcome) : x \in saved \ {None}})
NextCall(k) == CHOOSE n \in 1 .. Cardinality(UsedCalls(k)) + 1 :
                    /\ n \notin UsedCalls(k)
                    /\ \A h \in 1 .. n - 1 : h \in UsedCalls(k)

(***************************************************************************)
(* Part 3. The actions.                                                    *)
(***************************************************************************)

\* A caller sends its /verify, or sends it again: every request can arrive twice. `as`: "own"; "plain" or "prefixed", a
\* double (of the first member's only) that comes without its cookie, and without its prefix or with it; "old", one of
\* before the restore that is still on its way. (Without a group id a request that comes after the verdict only starts
\* another cohort.)
Submit(m, n, as) ==
    LET w == WaiterOf(m, n)
        s == IF as \in {"plain", "prefixed"} THEN None ELSE SessionOf(m)
        ep == IF as = "plain" THEN None ELSE IF as = "old" THEN <<m, caller[m].ep - 1>> ELSE EpisodeOf(m)
        r == DoSubmit(core, w, s, ep, KeyOf(m), m[2], caller[m].ans)
        reply == r.reply.reply
        heard == Hear(r.told)
    IN /\ Serving
       /\ caller[m].st = "verify"
       /\ Grouped(m[1]) \/ ~ IsOutcome(caller[m].told)
       /\ w \notin DOMAIN core.waiting
       /\ n > 1 => (m[2] = 0 /\ WaiterOf(m, n - 1) \in DOMAIN core.waiting)
       /\ \/ as = "own" /\ (n > 1 => ~ May("plain duplicate"))
          \/ as \in {"plain", "prefixed"} /\ n > 1 /\ May("plain duplicate")
          \/ as = "old" /\ May("use") /\ n = 1 /\ caller[m].ep > 0
       /\ Act(r, "Submit", [waiter |-> w, session |-> s, episode |-> ep, cohort |-> KeyOf(m),
                            index |-> m[2], answer |-> caller[m].ans])
       /\ caller' = IF reply[1] = "told"
                    THEN [heard EXCEPT ![m].told = reply[2], ![m].via = IF s = None THEN @ ELSE s[3]] ELSE heard
       /\ UNCHANGED world

\* A disconnect. The member stays.
Leave(w) ==
    /\ Serving
    /\ May("disconnect")
    /\ w \in DOMAIN core.waiting
    /\ Act(DoLeave(core, w), "Leave", [waiter |-> w])
    /\ UNCHANGED <<caller, world>>

ExpireCollection(k) ==
    /\ Serving
    /\ CanExpireCollection(core, k)
    /\ ~ Mutant("NoCollectTimeout")
    /\ LET r == DoFail(core, k, "collection_timeout") IN
       /\ Act(r, "ExpireCollection", [cohort |-> k])
       /\ caller' = Hear(r.told)
    /\ UNCHANGED world

Judged(k) ==
    /\ Serving
    /\ CanJudge(core, k)
    /\ LET results == [i \in Index |-> <<"reward", NextCall(k), core.cohort[k].ans, i>>] IN
       Act(DoJudged(core, k, results), "Judged", [cohort |-> k, results |-> results])
    /\ UNCHANGED <<caller, world>>

\* The judge failed, or the evaluation deadline passed.
JudgeFailed(k) ==
    /\ Serving
    /\ CanJudge(core, k)
    /\ LET failure == <<"judge", NextCall(k), core.cohort[k].ans>> IN
       Act(DoJudgeFailed(core, k, failure), "JudgeFailed", [cohort |-> k, failure |-> failure])
    /\ UNCHANGED <<caller, world>>

\* A task that holds an outcome is woken by admission being open.
Wake(k) ==
    /\ Serving
    /\ k \in DOMAIN task
    /\ task[k] = "asleep"
    /\ core.open \/ Mutant("NoHold") \/ (Mutant("JudgeFailureNotHeld") /\ core.cohort[k].fail # None)
    /\ task' = [task EXCEPT ![k] = "awake"]
    /\ ev' = <<"Wake", [cohort |-> k], None>>
    /\ UNCHANGED <<core, caller, world>>

\* The woken task publishes, or finds admission closed again.
Publish(k) ==
    /\ Serving
    /\ k \in DOMAIN task
    /\ task[k] = "awake"
    /\ CanPublish(core, k)
    /\ LET r == DoPublish(core, k) IN
       /\ Act(r, "Publish", [cohort |-> k])
       /\ caller' = Hear(r.told)
    /\ UNCHANGED world

\* What the task does after a refused publish: it waits for admission again.
Recheck(k) ==
    /\ Serving
    /\ k \in DOMAIN task
    /\ task[k] = "awake"
    /\ ~ core.open
    /\ task' = [task EXCEPT ![k] = IF Mutant("LostWakeup") THEN "lost" ELSE "asleep"]
    /\ ev' = <<"Recheck", [cohort |-> k], None>>
    /\ UNCHANGED <<core, caller, world>>

\* An evaluation ends by an error that is not the judge's.
Fail(k) ==
    /\ Serving
    /\ May("evaluation error")
    /\ CanJudge(core, k)
    /\ LET r == DoFail(core, k, "evaluation_failed") IN
       /\ Act(r, "Fail", [cohort |-> k, code |-> "evaluation_failed"])
       /\ caller' = Hear(r.told)
    /\ UNCHANGED world

Expire(k) ==
    /\ Serving
    /\ CanExpire(core, k)
    /\ Act(DoExpire(core, k), "Expire", [cohort |-> k])
    /\ UNCHANGED <<caller, world>>

ExpireWatermark(g) ==
    /\ Serving
    /\ CanExpireWatermark(core, g)
    /\ Act(DoExpireWatermark(core, g), "ExpireWatermark", [group |-> g])
    /\ UNCHANGED <<caller, world>>

\* Nobody will use this session again; an earlier one is kept in use until the later one was told something.
Abandoned(s) ==
    LET x == caller[SlotOf(s)] IN
    \/ x.st \in {"recorded", "done", "retired"}
    \/ s[3] < x.sid /\ x.via = x.sid

ExpireSession(s) ==
    /\ Serving
    /\ Abandoned(s)
    /\ CanExpireSession(core, s)
    /\ Act(DoExpireSession(core, s), "ExpireSession", [session |-> s])
    /\ UNCHANGED <<caller, world>>

\* A caller seeds its session; or its seed arrives twice.
Seed(m) ==
    LET r == DoSeed(core, SessionOf(m), EpisodeOf(m)) IN
    /\ Serving
    /\ core.open
    /\ caller[m].st = "new" \/ (May("duplicate seed") /\ caller[m].st \in {"verify", "done"})
    /\ Act(r, "Seed", [session |-> SessionOf(m), episode |-> EpisodeOf(m)])
    /\ caller' = IF r.reply = "bound" /\ caller[m].st = "new" THEN [caller EXCEPT ![m].st = "verify"] ELSE caller
    /\ UNCHANGED world

\* A tool call. `back` 1: one of before the restore, still on its way.
UseSession(m, back) ==
    /\ Serving
    /\ core.open
    /\ May("use")
    /\ caller[m].st = "verify"
    /\ back <= caller[m].ep
    /\ LET ep == <<m, caller[m].ep - back>> IN
       Act(DoUseSession(core, SessionOf(m), ep), "UseSession", [session |-> SessionOf(m), episode |-> ep])
    /\ UNCHANGED <<caller, world>>

\* The close of a caller that recorded its outcome or gave up; or the verify reply of one that sends no close.
\* Such a caller counts as having recorded when its session ended with admission open (contract 3.4).
\* `back` 1: a close of before the restore, still on its way.
EndSession(m, by, back) ==
    LET x == caller[m]
        ep == <<m, x.ep - back>>
        r == DoEndSession(core, SessionOf(m), ep, by)
    IN /\ Serving
       /\ back <= x.ep
       /\ \/ /\ back = 1
             /\ by = "close"
             /\ core.open
             /\ May("use")
             /\ x.st = "verify"
          \/ /\ back = 0
             /\ by = "close"
             /\ core.open
             /\ m[1] \notin Untyped
             /\ \/ x.st = "recorded"
                \/ x.st = "verify" /\ x.told # None /\ ~ IsOutcome(x.told)
          \/ /\ back = 0
             /\ by = "verify"
             /\ m[1] \in Untyped
             /\ x.st \in {"verify", "recorded"}
             /\ IsOutcome(x.told)
             /\ SessionOf(m) \in DOMAIN core.session
             /\ ~ core.session[SessionOf(m)].ending
       /\ Act(r, "EndSession", [session |-> SessionOf(m), episode |-> ep, by |-> by])
       /\ caller' = IF core.open /\ back = 0 THEN [caller EXCEPT ![m].st = "done"] ELSE caller
       /\ UNCHANGED world

CloseAdmission ==
    /\ world.phase \in {"idle", "crashed"}
    /\ May("checkpoint")
    /\ core.open
    /\ ~ core.down
    /\ Act(DoCloseAdmission(core), "CloseAdmission", None)
    /\ world' = [world EXCEPT !.phase = IF world.phase = "idle" THEN "prepare" ELSE "restoring"]
    /\ UNCHANGED caller

OpenAdmission ==
    LET r == DoOpenAdmission(core)
        heard == Hear(r.told)
    IN /\ world.phase \in {"prepare", "committed", "written", "restored", "restoring"}
       /\ ~ core.open
       /\ Act(r, "OpenAdmission", None)
       /\ caller' = [m \in Slots |-> IF SessionOf(m) \in r.reply.ended THEN [heard[m] EXCEPT !.st = "done"] ELSE heard[m]]
       /\ world' = [world EXCEPT !.phase = IF world.phase = "restoring" THEN "failed" ELSE "idle",
                                 !.states = Empty, !.order = <<>>, !.plan = {}, !.cap = Empty, !.judged = {}, !.newest = Empty]

\* The groups in the order of the eviction list; then those without a terminal cohort.
Exportable(g) ==
    LET waiting == IF core.exporting THEN world.plan ELSE {core.record[s].k[1] : s \in DOMAIN core.record}
        at(h) == {j \in DOMAIN core.term : core.term[j][1] = h}
    IN /\ g \in waiting
       /\ \A h \in waiting : at(h) # {} => \E j \in at(g) : \A l \in at(h) : j <= l

Ascending(K) == [j \in 1 .. Cardinality(K) |-> CHOOSE k \in K : Cardinality({h \in K : h[2] < k[2]}) = j - 1]

\* The callers whose outcome is there, and whose session is open: what the promise is about.
Owed(g) ==
    {m \in {m \in Slots : m[1] = g} :
        /\ caller[m].st = "verify"
        /\ SessionOf(m) \in DOMAIN core.session
        /\ KeyOf(m) \in DOMAIN core.cohort
        /\ LET co == core.cohort[KeyOf(m)] IN
           /\ co.ans[m[2]] = caller[m].ans
           /\ co.phase \in {"held", "completed"} \/ IsOutcome(co.fail)}

ExportGroup(g) ==
    /\ world.phase = "prepare"
    /\ ~ core.down
    /\ Exportable(g)
    /\ LET r == DoExport(core, g)
           kept == {r.reply[s].state.k : s \in {s \in DOMAIN r.reply : r.reply[s].state # None}}
           plan == IF core.exporting THEN world.plan ELSE {core.record[s].k[1] : s \in DOMAIN core.record}
       IN /\ Act(r, "Export", [group |-> <<g>>, rest |-> {}, anew |-> ~ core.exporting])
          /\ world' = [world EXCEPT !.states = r.reply @@ @, !.order = @ \o Ascending(kept), !.plan = plan \ {g},
                                    !.judged = @ \cup Owed(g),
                                    !.newest = IF Owed(g) = {} THEN @ ELSE Put(@, g, Mark(core, g).a)]
    /\ UNCHANGED caller

ExportRest ==
    /\ world.phase = "prepare"
    /\ ~ core.down
    /\ IF core.exporting THEN world.plan = {} ELSE DOMAIN core.record = {}
    /\ LET rest == DOMAIN core.session \ core.exported
           r == DoExportRest(core, rest)
       IN /\ (rest # {} \/ ~ core.exporting)
          /\ Act(r, "Export", [group |-> None, rest |-> rest, anew |-> ~ core.exporting])
          /\ world' = [world EXCEPT !.states = r.reply @@ @]
    /\ UNCHANGED caller

Export == ExportRest \/ \E g \in GroupNames : ExportGroup(g)

Exported == core.exporting /\ world.plan = {} /\ DOMAIN core.session \subseteq core.exported

\* The callers' own server captures one caller.
Capture(m) ==
    /\ May("fine capture")
    /\ world.phase = "prepare"
    /\ m \notin DOMAIN world.cap
    /\ world.crashes < MaxCrash
    /\ world' = [world EXCEPT !.cap = Put(@, m, caller[m])]
    /\ ev' = <<"Capture", [slot |-> m], None>>
    /\ UNCHANGED <<core, caller, task>>

\* What was exported and captured is durable.
Commit ==
    /\ world.phase = "prepare"
    /\ Exported
    /\ world.crashes < MaxCrash \/ May("scope")
    /\ May("fine capture") => DOMAIN world.cap = Slots
    /\ world' = [world EXCEPT !.phase = "committed", !.cap = @ @@ caller]
    /\ ev' = <<"Commit", None, None>>
    /\ UNCHANGED <<core, caller, task>>

\* The process dies; what was captured goes on, each rollout as the next attempt of its episode.
Crash ==
    /\ world.phase = "committed"
    /\ world.crashes < MaxCrash
    /\ core' = Fresh
    /\ task' = Empty
    /\ caller' = [m \in Slots |->
            LET x == world.cap[m] IN
            IF x.st = "recorded" THEN [x EXCEPT !.ep = @ + 1]
            ELSE IF x.st # "verify" THEN x
            ELSE [x EXCEPT !.ep = @ + 1, !.kept = m \in world.judged /\ x.ans = caller[m].ans /\ x.att = caller[m].att]]
    /\ world' = [world EXCEPT !.phase = "crashed", !.crashes = @ + 1, !.cap = Empty, !.plan = {}, !.judged = {}]
    /\ ev' = <<"Crash", None, None>>

\* What may be wrong with a file: two of its sessions say different things of one member, or of one group.
Disagree(x, y) ==
    /\ x # None
    /\ y # None
    /\ \/ x.k = y.k /\ x.i = y.i /\ (x.answer # y.answer \/ x.outcome # y.outcome)
       \/ x.k[1] = y.k[1] /\ x.newest # y.newest
Agreed(states) == \A s, t \in DOMAIN states : ~ Disagree(states[s].state, states[t].state)

\* The same file, damaged: where two sessions back one member, the first says that it got the outcome of another
\* judging; where they only share a group, the first names another newest attempt.
Damaged(states) ==
    LET backed == {s \in DOMAIN states : states[s].state # None}
        twins(s) == {t \in backed \ {s} : states[t].state.k = states[s].state.k /\ states[t].state.i = states[s].state.i}
        kin(s) == {t \in backed \ {s} : states[t].state.k[1] = states[s].state.k[1]}
        two == {s \in backed : twins(s) # {}}
        one == {s \in backed : kin(s) # {}}
    IN IF two # {} THEN LET s == CHOOSE x \in two : \A y \in twins(x) : x[3] < y[3] IN
                        [states EXCEPT ![s].state.outcome[2] = 0]
       ELSE IF one # {} THEN LET s == CHOOSE x \in one : \A y \in kin(x) : x[2] < y[2] IN
                        [states EXCEPT ![s].state.newest = @ + 1]
       ELSE states

Install(states) ==
    /\ Act(DoRestore(core, states, world.order), "Restore", [states |-> states, order |-> world.order])
    /\ world' = [world EXCEPT !.phase = "restored", !.states = Empty, !.order = <<>>, !.newest = Empty]

Restore ==
    /\ world.phase = "restoring"
    /\ Agreed(world.states)
    /\ Install(world.states)
    /\ UNCHANGED caller

\* A restore that cannot be: of a damaged file, of one under an unknown digest scheme, into a process in use.
RefuseRestore(reason) ==
    /\ May("refused restore")
    /\ \/ reason = "disagreement" /\ world.phase = "restoring" /\ ~ Agreed(Damaged(world.states))
       \/ reason = "unknown scheme" /\ world.phase = "restoring" /\ (\E s \in DOMAIN world.states : world.states[s].state # None)
       \/ reason = "not empty" /\ world.phase = "idle" /\ (DOMAIN core.session # {} \/ DOMAIN core.cohort # {} \/ core.marks # <<>>)
    /\ IF reason = "disagreement" /\ Mutant("AgreementUnchecked") THEN Install(Damaged(world.states))
       ELSE /\ Act(DoRefuseRestore(core, world.states, world.order), "RefuseRestore", [reason |-> reason])
            /\ UNCHANGED world
    /\ UNCHANGED caller

\* The controller retires rollouts; they start over. A failed restore retires all that had not finished.
Retire(S) ==
    LET episodes == {EpisodeOf(m) : m \in S}
        r == DoRetire(core, episodes)
        living == {m \in Slots : caller[m].st \in (IF world.phase = "failed" THEN {"new", "verify"} ELSE {"verify"})}
    IN /\ \/ /\ world.phase = "failed"
             /\ S = living
          \/ /\ Retiring
             /\ S # {}
             /\ S \subseteq living
             /\ IF world.phase # "idle" THEN May("retire") ELSE May("live retire") /\ Cardinality(S) = 1
             /\ (world.phase = "idle" /\ May("fine capture")) => \A m \in S : m[2] = 0
       /\ ~ core.down
       /\ Act(r, "Retire", [episodes |-> episodes])
       /\ caller' = [m \in Slots |-> IF m \in S THEN [caller[m] EXCEPT !.st = "retired"] ELSE caller[m]]
       /\ world' = IF world.phase = "failed" THEN [world EXCEPT !.phase = "idle"] ELSE world

\* A commit leaves rollouts out of its scope; they start over. Only those that made no request since a restore.
DeleteRestored(S) ==
    LET scope == {EpisodeOf(m) : m \in Slots \ S}
        left_out == {s \in DOMAIN core.session : core.session[s].ep \notin scope}
        unclaimed(m) == SessionOf(m) \in DOMAIN core.session /\ ~ core.session[SessionOf(m)].claimed
    IN /\ May("scope")
       /\ world.phase = "committed"
       /\ \A m \in S : caller[m].st = "verify" /\ unclaimed(m)
       /\ Act(DoDeleteRestored(core, left_out), "DeleteRestored", [sessions |-> left_out])
       /\ caller' = [m \in Slots |-> IF m \in S THEN [caller[m] EXCEPT !.st = "retired"] ELSE caller[m]]
       /\ world' = [world EXCEPT !.phase = "written", !.states = Empty, !.order = <<>>, !.cap = Empty,
                                 !.judged = {}, !.newest = Empty]

Forget(m) ==
    /\ May("forget")
    /\ world.phase \in {"idle", "restored"}
    /\ m \in DOMAIN core.retired
    /\ caller[m].st # "retired"
    /\ Act(DoForget(core, {m}), "Forget", [rollouts |-> {m}])
    /\ UNCHANGED <<caller, world>>

\* The caller writes its outcome down.
Record(m) ==
    /\ Serving
    /\ caller[m].st = "verify"
    /\ m[1] \notin Untyped
    /\ IsOutcome(caller[m].told)
    /\ caller' = [caller EXCEPT ![m].st = "recorded"]
    /\ ev' = <<"Record", [slot |-> m], None>>
    /\ UNCHANGED <<core, task, world>>

\* A retired rollout starts over from its input, in the same group attempt.
\* A rollout goes to the next group attempt, in the same session.
\* A rollout runs again from its captured state and gives the same answer, in a session of its own (the first only).
Rerun(m, how) ==
    /\ Serving
    /\ \/ /\ how = "over"
          /\ caller[m].st = "retired"
          /\ caller[m].ans < MaxAnswer
          /\ caller' = [caller EXCEPT ![m] = [@ EXCEPT !.ans = @ + 1, !.ep = @ + 1, !.sid = @ + 1, !.st = "new",
                                                   !.told = None, !.via = 0, !.kept = FALSE]]
       \/ /\ how = "next attempt"
          /\ caller[m].st = "verify"
          /\ ~ IsOutcome(caller[m].told)
          /\ Grouped(m[1])
          /\ caller[m].att < MaxAttempt
          /\ caller' = [caller EXCEPT ![m] = [@ EXCEPT !.att = @ + 1, !.ans = 1, !.told = None, !.via = 0, !.kept = FALSE]]
       \/ /\ how = "again"
          /\ May("again")
          /\ caller[m].st = "verify"
          /\ caller[m].sid = 1
          /\ m[2] = 0
          /\ caller' = [caller EXCEPT ![m] = [@ EXCEPT !.ep = @ + 1, !.sid = @ + 1, !.st = "new"]]
    /\ ev' = <<"Rerun", [slot |-> m, how |-> how], None>>
    /\ UNCHANGED <<core, task, world>>

\* A commit whose export was complete may still be written; one that was not never is.
ShutDown ==
    /\ Serving
    /\ May("shutdown")
    /\ ~ core.down
    /\ LET r == DoShutDown(core) IN
       /\ Act(r, "ShutDown", None)
       /\ caller' = Hear(r.told)
    /\ world' = IF core.exporting /\ ~ Exported THEN [world EXCEPT !.plan = GroupNames] ELSE world

Sessions == {<<m[1], m[2], n>> : m \in Slots, n \in 1 .. MaxAnswer + (IF May("again") THEN 1 ELSE 0)}
\* Rollouts are retired, or left out of a scope, one by one or all together.
Some(st) == {{m} : m \in Slots} \cup {{m \in Slots : caller[m].st \in st}}
WaiterIds == {<<m[1], m[2], n>> : m \in Slots, n \in 1 .. MaxWaiters * MaxAnswer}

Next ==
    \/ \E m \in Slots, n \in 1 .. MaxWaiters, as \in {"own", "plain", "prefixed", "old"} : Submit(m, n, as)
    \/ \E w \in WaiterIds : Leave(w)
    \/ \E k \in Keys : ExpireCollection(k)
    \/ \E k \in Keys : Judged(k)
    \/ \E k \in Keys : JudgeFailed(k)
    \/ \E k \in Keys : Wake(k)
    \/ \E k \in Keys : Publish(k)
    \/ \E k \in Keys : Recheck(k)
    \/ \E k \in Keys : Fail(k)
    \/ \E k \in Keys : Expire(k)
    \/ \E g \in GroupNames : ExpireWatermark(g)
    \/ \E s \in Sessions : ExpireSession(s)
    \/ \E m \in Slots : Seed(m)
    \/ \E m \in Slots, back \in 0 .. 1 : UseSession(m, back)
    \/ \E m \in Slots, by \in {"verify", "close"}, back \in 0 .. 1 : EndSession(m, by, back)
    \/ CloseAdmission
    \/ OpenAdmission
    \/ Export
    \/ \E m \in Slots : Capture(m)
    \/ Commit
    \/ Crash
    \/ Restore
    \/ \E reason \in {"disagreement", "unknown scheme", "not empty"} : RefuseRestore(reason)
    \/ \E S \in Some({"verify"}) \cup Some({"new", "verify"}) : Retire(S)
    \/ \E S \in Some({"verify"}) \cup {{}} : DeleteRestored(S)
    \/ \E m \in Slots : Forget(m)
    \/ \E m \in Slots : Record(m)
    \/ \E m \in Slots, how \in {"over", "next attempt", "again"} : Rerun(m, how)
    \/ ShutDown

Spec == Init /\ [][Next]_vars
==============================================================================
