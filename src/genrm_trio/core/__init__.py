"""The promise, as plain synchronous Python on the standard library only.

State is a value that only named actions change. Nothing here awaits, reads a clock, draws a random
number, logs or does I/O: `now` is an argument, and what happened is emitted through one hook.
"""
