"""Unexpected errors of connections and requests, as one bounded line of the log each.

They are told to nobody else: the client gets its 500, the server goes on.
"""

import traceback

import structlog

log = structlog.get_logger(__name__)

LONGEST_TRACE = 6000
"""Characters of a traceback that are logged; its end says most."""


def report(event: str, error: BaseException, **fields: object) -> None:
    """Log an error with its traceback; repeats of the same kind of error at the same event are thinned out."""
    trace = "".join(traceback.format_exception(error))
    log.error(event, once=_kind(error), error=repr(error)[:500], trace=trace[-LONGEST_TRACE:], **fields)


def _kind(error: BaseException) -> str:
    """The name of the error's type; of a group, the types of what is in it, as every connection's error is in one."""
    if isinstance(error, BaseExceptionGroup):
        return " ".join(sorted({_kind(one) for one in error.exceptions}))
    return type(error).__qualname__
