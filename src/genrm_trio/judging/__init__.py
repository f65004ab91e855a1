"""Answers in, scores out: text, digests, pairs, verdicts and rewards, and the transports that ask a judge.

Everything here but the transports is a pure function of its arguments. No cohort, session or request lives here.
"""
