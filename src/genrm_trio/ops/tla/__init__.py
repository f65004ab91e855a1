"""The tie between this server and its formal spec: TLA+ values, the spec's names for events, traces as modules, TLC."""
