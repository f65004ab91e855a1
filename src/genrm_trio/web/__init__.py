"""HTTP: the guarded server, reading requests without their token arrays, sessions, prefix, errors and routes.

Nothing here decides what becomes of a cohort; that is the runtime's and the core's.
"""
