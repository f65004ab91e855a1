"""Checkpoints: the files that hold exported sessions, and the phases of the control plane.

`records`, `manifest`, `folders` and `store` are the files of contract 10.8; `phases` is the table of contract
10.3; `calls` are the bodies of contract 10.2; `inspection` reads a checkpoint for a person. Nothing here knows
how a cohort works: a session's state is any JSON value.
"""
