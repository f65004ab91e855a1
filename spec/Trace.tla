-------------------------------- MODULE Trace --------------------------------
(***************************************************************************)
(* Whether recorded traces are behaviours of the server. A trace is the    *)
(* sequence of a process's events: actions with their arguments and        *)
(* replies, as the code emits them. The server's part of the spec is run    *)
(* along it, and every reply must be the spec's own. What callers do is not *)
(* restricted: they may be worse than the callers of the spec.             *)
(*                                                                         *)
(* TraceData is generated: Traces, and for each where it begins. A trace   *)
(* knows nothing of prompts, of requests that bind no session, and of       *)
(* bounds; what is refused for these is taken as it is, with the effects    *)
(* that every such request has.                                            *)
(***************************************************************************)
EXTENDS Properties, TraceData

VARIABLES
    trace,     \* which trace
    position   \* how many of its events were followed

\* Begins holds, for each trace, nothing or the state where it goes on. The spec's variable world holds how admission
\* was closed: "idle" when it is open, "prepare", "restored".
Start(t) == IF Len(Begins[t]) = 0 THEN [core |-> Fresh, phase |-> "idle"] ELSE Begins[t][1]

TraceInit ==
    /\ trace \in DOMAIN Traces
    /\ position = 0
    /\ core = Start(trace).core
    /\ world = Start(trace).phase
    /\ caller = None
    /\ task = None
    /\ ev = <<"Init", None, None>>

\* The action leads to this state, and has this reply. What it should have been is told.
Leads(r, reply) ==
    /\ core' = r.core
    /\ IF r.reply = reply THEN TRUE ELSE PrintT("REPLY " \o ToString(<<trace, r.reply>>)) /\ FALSE
In(r, reply) == Leads(r, reply) /\ UNCHANGED world
To(phase, r, reply) == Leads(r, reply) /\ world' = phase

Known(k) == k \in DOMAIN core.cohort

------------------------------------------------------------------------------
(* Refusals that the spec does not have: the session counts as used, and the caps are held. *)
Beyond == {<<"refused", "too_busy">>, <<"refused", "inconsistent_prompt">>}
Turned(a, reply) ==
    LET used == Use(core, a.session, a.episode) IN Quiet(Prune(used), Replied(reply, Evicted(used), {}))

FollowSubmit(a, reply) ==
    IF reply.reply \in Beyond
    THEN LET r == Turned(a, reply.reply) IN
         /\ ~ core.down /\ ~ Stale(core, a.session, a.episode)
         /\ reply.reply[2] = "too_busy" => a.cohort \notin DOMAIN r.core.cohort
         /\ In(r, reply)
    ELSE In(DoSubmit(core, a.waiter, a.session, a.episode, a.cohort, a.index, a.answer), reply)

\* The ids of closed sessions are forgotten after a while, which no event tells.
Remembering(s, reply) == IF reply \in {"bound", "unbound"} THEN [core EXCEPT !.shut = @ \ {s}] ELSE core

\* A seed that was under way when admission closed still binds, but never once the export has begun.
FollowSeed(a, reply) ==
    LET c == Remembering(a.session, reply) IN
    CASE reply = "bound" ->
            /\ core.open \/ (world = "prepare" /\ ~ core.exporting)
            /\ a.episode # None
            /\ In(DoSeed(c, a.session, a.episode), reply)
      [] reply = "unbound" ->
            /\ ~ core.down /\ ~ Stale(c, a.session, a.episode)
            /\ In(Quiet(Use(c, a.session, a.episode), reply), reply)
      [] reply = "too_busy" ->
            /\ ~ core.down /\ ~ Stale(c, a.session, a.episode)
            /\ a.session \notin DOMAIN core.session
            /\ In(Quiet(core, reply), reply)
      [] OTHER -> In(DoSeed(c, a.session, a.episode), reply)

\* An export that failed is taken anew.
FollowExport(a, reply) ==
    LET c == IF a.anew THEN [core EXCEPT !.exported = {}] ELSE core
        r == IF a.group = None THEN DoExportRest(c, a.rest) ELSE DoExport(c, a.group[1])
    IN
    /\ world = "prepare"
    /\ ~ core.open /\ ~ core.down
    /\ In([r EXCEPT !.reply = [s \in DOMAIN @ |-> @[s].state]], reply)

Empties(c) == DOMAIN c.session = {} /\ DOMAIN c.cohort = {} /\ c.marks = <<>> /\ DOMAIN c.waiting = {}

Follow(name, a, reply) ==
    CASE name = "Submit" -> FollowSubmit(a, reply)
      [] name = "Leave" -> In(DoLeave(core, a.waiter), reply)
      [] name = "ExpireCollection" ->
            CanExpireCollection(core, a.cohort) /\ In(DoFail(core, a.cohort, "collection_timeout"), reply)
      [] name = "Judged" ->
            /\ CanJudge(core, a.cohort)
            /\ DOMAIN a.results = Index
            /\ In(DoJudged(core, a.cohort, a.results), reply)
      [] name = "JudgeFailed" -> CanJudge(core, a.cohort) /\ In(DoJudgeFailed(core, a.cohort, a.failure), reply)
      [] name = "Publish" -> CanPublish(core, a.cohort) /\ In(DoPublish(core, a.cohort), reply)
      [] name = "Fail" -> Known(a.cohort) /\ Active(core.cohort[a.cohort]) /\ In(DoFail(core, a.cohort, a.code), reply)
      [] name = "Expire" -> CanExpire(core, a.cohort) /\ In(DoExpire(core, a.cohort), reply)
      [] name = "ExpireWatermark" -> CanExpireWatermark(core, a.group) /\ In(DoExpireWatermark(core, a.group), reply)
      [] name = "ExpireSession" -> CanExpireSession(core, a.session) /\ In(DoExpireSession(core, a.session), reply)
      [] name = "Seed" -> FollowSeed(a, reply)
      [] name = "UseSession" -> core.open /\ In(DoUseSession(core, a.session, a.episode), reply)
      [] name = "EndSession" -> In(DoEndSession(core, a.session, a.episode, a.by), reply)
      [] name = "CloseAdmission" -> core.open /\ ~ core.down /\ To("prepare", DoCloseAdmission(core), reply)
      [] name = "OpenAdmission" -> ~ core.open /\ To("idle", DoOpenAdmission(core), reply)
      [] name = "Export" -> FollowExport(a, reply)
      [] name = "Restore" ->
            /\ world = "prepare" /\ ~ core.exporting
            /\ Empties(core)
            /\ To("restored", DoRestore(core, a.states, a.order), reply)
      [] name = "RefuseRestore" -> In(Quiet(core, None), reply)
      [] name = "Retire" -> world # "prepare" /\ ~ core.down /\ In(DoRetire(core, a.episodes), reply)
      [] name = "DeleteRestored" -> world = "prepare" /\ core.exporting /\ In(DoDeleteRestored(core, a.sessions), reply)
      [] name = "Forget" -> world # "prepare" /\ ~ core.down /\ In(DoForget(core, a.rollouts), reply)
      [] name = "ShutDown" -> ~ core.down /\ In(DoShutDown(core), reply)

TraceNext ==
    /\ position < Len(Traces[trace])
    /\ LET e == Traces[trace][position + 1] IN
       /\ Follow(e[1], e[2], e[3])
       /\ ev' = e
    /\ position' = position + 1
    /\ UNCHANGED <<trace, caller, task>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, position>>

\* One state for each event: a trace leads to one.
TraceView == <<trace, position>>

\* Tells how far each trace was followed, and where it ended.
Progress ==
    /\ PrintT("AT " \o ToString(<<trace, position>>))
    /\ IF position = Len(Traces[trace])
       THEN PrintT("END " \o ToString(<<trace, [core |-> core, phase |-> world]>>)) ELSE TRUE
==============================================================================
