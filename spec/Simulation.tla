------------------------------ MODULE Simulation ------------------------------
(***************************************************************************)
(* Random behaviours of a model that is too large to be explored: two      *)
(* groups of three, three attempts, three crashes, almost every optional   *)
(* behaviour of the world at once. All invariants and steps are checked on *)
(* each behaviour.                                                         *)
(*                                                                         *)
(* In a simulation a constraint ends the behaviour that breaks it, so what *)
(* the models leave out is a part of the next-state relation here.         *)
(***************************************************************************)
EXTENDS Model

\* Disconnects, doubled seeds, tool calls and the ends of things are always possible and would crowd out the rest.
Rare == {"Leave", "UseSession", "Seed", "Rerun", "Retire", "Fail", "ExpireCollection", "Capture", "OpenAdmission"}
SimNext ==
    /\ Next
    /\ Paths
    /\ ev'[1] \in Rare => RandomElement(1 .. 4) = 1
    /\ ev'[1] = "ShutDown" => RandomElement(1 .. 100) = 1
SimSpec == Init /\ [][SimNext]_vars
===============================================================================
