"""Why a mutant of the source is none of the spec: by reason, the mutants it holds for."""

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
        "RetireKeepsSlots",
        "RetireForgetsWatermark",
        "LateReplayStaysPending",
        "FirstSessionTakesMember",
        "LateForgotten",
        "LateForEver",
    ),
    "it breaks no invariant, but a reply or an order that replay compares after every step": (
        "FailureAfterComparison",
        "DisconnectTakesMember",
        "WatermarkOrder",
        "RestoreIntoState",
        "SameEpisodeAttempt",
        "DeleteTakesClaimed",
        "ForgetNothing",
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
}
