"""The log: one JSON object a line, each line bounded, valid Unicode and free of secrets.

`configure` is called once, by the command line. Every other room asks structlog for a logger and names an event
with fields; the standard library's loggers end up in the same lines. An event with the field `once` is written
at its first occurrence for that value, and then at most once in `REPEAT_S` with the number left out. A line that
cannot be written is lost and counted.
"""

import json
import logging
import math
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TextIO

import structlog

from genrm_trio.judging.text import scrub
from genrm_trio.ops.outputs import unfailing

MASK: Final = "***"
REPEAT_S: Final = 60.0
"""Seconds between two lines of a repeated event."""
DEEPEST: Final = 6
"""Levels of nesting that a field is shown to."""
LONGEST_LIST: Final = 50
"""Entries of a list or a mapping that are shown."""


def configure(
    *, debug: bool = False, secrets: Sequence[str] = (), max_line: int = 8192, stream: TextIO | None = None
) -> None:
    """Send all logging to `stream` (standard error) as JSON lines of at most `max_line` characters each."""
    level = logging.DEBUG if debug else logging.INFO
    common: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(),
    ]
    render = Renderer(secrets, max_line)
    out = unfailing(stream or sys.stderr)
    structlog.configure(
        processors=[Repeats(), *common, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("trio.serve_listeners").addFilter(_ACCEPT_FAULTS)  # the same one again is none more
    logging.captureWarnings(capture=True)


class AcceptFaults(logging.Filter):
    """Has one short line, not repeated, say that connections cannot be accepted.

    Trio tries again ten times a second, and logs each failure with its traceback.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Say it in our words; the record itself never passes."""
        error = record.exc_info[1] if record.exc_info else None
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number) if number is not None else record.getMessage()
        text = f"{reason}: connections wait until one can be accepted"
        structlog.get_logger().error("accept_failed", text=text, once=reason)
        return False


_ACCEPT_FAULTS: Final = AcceptFaults()


class Repeats:
    """Writes an event that carries `once` at its first occurrence, and then once in `every_s` seconds.

    Remembers `capacity` values; beyond it the one that was seen longest ago counts as new again.
    """

    def __init__(
        self, every_s: float = REPEAT_S, capacity: int = 1024, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._capacity = capacity
        self._clock = clock
        self._seen: OrderedDict[object, tuple[float, int]] = OrderedDict()

    def __call__(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Let the event pass, with `left_out` when others like it did not, or drop it."""
        if "once" not in event:
            return event
        key = (event["event"], str(event.pop("once")))
        now = self._clock()
        written, left_out = self._seen.pop(key, (-math.inf, 0))
        if now - written < self._every_s:
            self._seen[key] = (written, left_out + 1)
            raise structlog.DropEvent
        self._seen[key] = (now, 0)
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        if left_out:
            event["left_out"] = left_out
        return event


class Renderer:
    """Turns an event into its line. Never raises: what cannot be shown is named instead."""

    def __init__(self, secrets: Sequence[str], max_line: int) -> None:
        forms = {form for secret in secrets for form in (secret, json.dumps(secret)[1:-1]) if form}
        self._secrets = sorted(forms, key=len, reverse=True)
        self._max_line = max_line

    def __call__(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> str:
        """Return the line, without its newline."""
        fields = {self._text(str(key)): self._value(value, DEEPEST) for key, value in event.items()}
        line = _dump(fields)
        return line if len(line) <= self._max_line else self._cut(fields)

    def _cut(self, fields: Mapping[str, Any]) -> str:
        """Shorten the longest fields until the line fits; `cut` names them."""
        shown = dict(fields)
        cut: list[str] = []
        for name in sorted(shown, key=lambda name: len(_dump({name: shown[name]})), reverse=True):
            cut.append(name[:64])
            text = shown.pop(name) if isinstance(shown[name], str) else _dump(shown.pop(name))
            room = self._max_line - len(_dump({**shown, name[:64]: "", "cut": cut}))
            if room >= 0:
                shown[name[:64]] = _head(text, room)
                return _dump({**shown, "cut": cut})
        return _dump({"event": "log_line_too_long", "level": str(fields.get("level"))[:32]})

    def _value(self, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int):
            return value if not isinstance(value, int) or value.bit_length() <= 64 else self._text(hex(value))
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes):
            return self._text(value[: self._max_line].decode("utf-8", "replace"))
        if depth == 0:
            return "..."
        if isinstance(value, Mapping):
            shown = list(value.items())[:LONGEST_LIST]
            return {self._text(str(key)): self._value(item, depth - 1) for key, item in shown}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item, depth - 1) for item in list(value)[:LONGEST_LIST]]
        return self._text(_described(value))

    def _text(self, text: str) -> str:
        """Mask every secret, then bound: a cut must not leave half a secret standing."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return scrub(text[: self._max_line])


def _described(value: object) -> str:
    """Return what an object says of itself."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - any object may come here, and a log line must not fail
        return f"<{type(value).__name__} that raised {type(error).__name__}>"


def _dump(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "))


def _head(text: str, room: int) -> str:
    """Return the longest start of a text whose JSON form has at most `room` characters."""
    if len(_dump(text)) - 2 <= room:
        return text
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(_dump(text[:middle])) - 2 <= room else (low, middle - 1)
    return text[:low]
