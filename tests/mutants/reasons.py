"""Why a mutant of the source is none of the spec, or is not found by replay: by reason, the mutants it holds for."""

SOURCE_ONLY = {
    "the spec has no bodies, digests, schemes, prompts or formats; an answer is a number there": (
        "BodiesKept",
        "PromptAfterStale",
        "SchemeIgnored",
        "UnknownSchemeRestored",
        "TwiceAccepted",
    ),
    "the spec has no time: whatever may be due can go, and whoever waits can time out": (
        "TtlOffByOne",
        "ReplayRefreshesAge",
        "WatermarkTtlNever",
        "CollectionTimerLost",
        "EvaluationTimerLost",
        "SweepLost",
        "ToldCountsAsIdle",
    ),
    "the spec has no bound on held members": ("PlacesLeak", "BoundSplitsCohort"),
    "the spec has one value where the code keeps several in step: these leave one of them behind": (
        "CloseKeepsCohorts",
        "PruneLeavesTerminal",
        "PruneLeavesGroup",
        "PruneLeavesWatermark",
        "MembersByArrival",
    ),
    "the spec breaks the same rule under another name; here a second place in the code can break it": (
        "KeepNothing",
        "RestoreIgnoresOutcomes",
        "RetireSkipped",
        "FirstSessionTakesMember",
        "LateForgotten",
        "LateForEver",
    ),
    "it breaks no invariant, but a reply or an order that replay compares after every step": (
        "FailureAfterComparison",
        "DisconnectTakesMember",
        "RestoreIntoState",
        "SameEpisodeAttempt",
        "DeleteTakesClaimed",
        "ForgetNothing",
        "ReplayRefused",
        "LiveRetireFreesUngrouped",
    ),
    "the spec has no such request: an attempt older than the one retired, a session of somebody else": (
        "RetireOnlyExactAttempt",
        "StaleClaims",
    ),
    "it is about requests and calls of the runtime that wait, which the spec lets come later": (
        "DisconnectLeaksWaiter",
        "GateNoRecheck",
        "RetireIsNoBlocker",
        "VerifyBeforeRestore",
        "WaitingToolClaims",
    ),
    "the spec has no connections": ("GuardLetsThrough",),
}

NOT_REPLAYED = {
    "the spec has no prompts and no digest schemes, so no request of a graph comes with another one": (
        "PromptAfterStale",
        "SchemeIgnored",
    ),
    "the spec has no bound on held members, and led code is given none": ("BoundSplitsCohort",),
    "time stands still while code is led: nothing is used later, deadlines and sweeps come when the graph says so": (
        "ToldCountsAsIdle",
        "CollectionTimerLost",
        "EvaluationTimerLost",
        "SweepLost",
    ),
    "no request of a graph comes under an attempt beyond the one that its session is bound to": ("StaleClaims",),
    "no rollout of a graph asks under an attempt that is earlier than the one it was retired under": (
        "RetireOnlyExactAttempt",
    ),
    "sessions of one member are of one rollout in a graph, and a retire ends them together": (
        "FirstSessionTakesMember",
    ),
    "a commit of a graph leaves out only rollouts that nobody went on with": ("DeleteTakesClaimed",),
    "the files that a graph refuses are damaged in other ways: a digest, a scheme, a session twice": (
        "RestoreIgnoresOutcomes",
    ),
    "the phases of the control plane are not in the spec, and retires are led without it": (
        "RetireDuringCommit",
        "RetireIsNoBlocker",
    ),
    "in a graph nobody waits at the gate: seeds, closes and tool calls come once admission is open": (
        "GateNoRecheck",
        "VerifyBeforeRestore",
        "WaitingToolClaims",
    ),
    "code is led without connections": ("GuardLetsThrough",),
}
"""What kills.json has null for. Each is killed by the tests named in the table."""
