"""The only room where time passes: cohort lives, admission waits, the root nursery, the drain.

Every wait here is followed by a re-check inside a synchronous action of the core, and every task has an owner.
"""
