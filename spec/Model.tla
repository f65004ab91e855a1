-------------------------------- MODULE Model --------------------------------
(***************************************************************************)
(* How the spec is put before TLC: what identifies a state, which paths     *)
(* are left out because they add nothing, and the printing of the labelled *)
(* graph. Bounds are the constants in mc/*.cfg.                            *)
(***************************************************************************)
EXTENDS Properties

\* ev is not part of a state.
View == <<core, caller, task, world>>

\* A committed checkpoint that matters is followed by its crash at once: a crash wipes all but the checkpoint, so
\* nothing is lost, and no second copy of the state is needed. Where export and capture are not studied apart, an
\* export is not begun unless it is committed, and nothing comes between its steps.
Paths ==
    /\ world.phase = "committed" => ev'[1] \in {"Crash", "DeleteRestored"}
    /\ (world.phase = "prepare" /\ core.exporting /\ ~ May("fine capture")) => ev'[1] \in {"Export", "Commit", "ShutDown"}
    /\ ev'[1] = "Export" => (world.crashes < MaxCrash \/ May("scope"))
    /\ (ev'[1] = "DeleteRestored" /\ ~ May("fine capture")) => core'.session # core.session

\* Prints each kind of event when it is first met: the action, and which way its reply went. What is never printed
\* is not covered. (TLC's own -coverage expands every operator at every use, which this spec is too deep for.)
Way(e) ==
    IF e[1] = "Submit" THEN (IF e[3].reply[1] = "waits" THEN "waits"
                             ELSE IF e[3].reply[1] = "told" THEN "told " \o e[3].reply[2][1]
                             ELSE e[3].reply[2])
    ELSE IF e[1] = "Publish" THEN (IF e[3].published THEN "published" ELSE "closed")
    ELSE IF e[1] \in {"Seed", "EndSession"} THEN e[3]
    ELSE IF e[1] = "UseSession" THEN (IF e[3] THEN "used" ELSE "stale")
    ELSE IF e[1] = "Export" THEN (IF e[2].group = None THEN "rest" ELSE "group")
    ELSE IF e[1] = "Rerun" THEN e[2].how
    ELSE IF e[1] \in {"RefuseRestore"} THEN e[2].reason
    ELSE ""
Coverage ==
    LET label == <<ev'[1], Way(ev')>> IN
    IF label \in TLCGet(1) THEN TRUE
    ELSE TLCSet(1, TLCGet(1) \cup {label}) /\ PrintT("TAKEN " \o label[1] \o ": " \o label[2])
ASSUME TLCSet(1, {})

\* Stands for Mutant where a configuration says so: prints each rule when it is first asked for. A configuration in which
\* a rule is never asked for is the same whether the rule is kept or broken.
Asked(name) ==
    /\ IF name \in TLCGet(2) THEN TRUE ELSE TLCSet(2, TLCGet(2) \cup {name}) /\ PrintT("ASKED " \o name)
    /\ name \in Mutants
ASSUME TLCSet(2, {})

\* Prints each transition; with one worker, and without symmetry.
Edges == PrintT("EDGE " \o ToString(<<View, ev', View'>>))
==============================================================================
