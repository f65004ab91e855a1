"""What a judge reads: the answer inside a response and the turns inside a prompt (contract 7.1 and 7.5).

Only decoded JSON comes in and only text goes out. Nothing here judges, hashes or knows a request. Anything of an
unexpected shape is skipped, never an error: checking shapes is the wire's business.
"""

import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass

BLANK_ANSWER = "None"
"""What the judge is shown instead of a blank answer (contract 7.1)."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def scrub(text: str) -> str:
    """Return `text` with every lone surrogate replaced by U+FFFD, so that it can be written as UTF-8 (contract 4)."""
    return _LONE_SURROGATE.sub("\ufffd", text)


class _Shown(reprlib.Repr):
    """As Python writes a value, but only a few levels and entries of it.

    Texts stay whole: a secret is masked later, and a cut must not leave half of it standing.
    """

    def repr_str(self, x: str, level: int) -> str:
        """Quote a text."""
        return repr(x)

    def repr_int(self, x: int, level: int) -> str:
        """Write an integer, unless Python would refuse to."""
        return repr(x) if x.bit_length() <= LONGEST_INTEGER else f"<an integer of {x.bit_length()} bits>"


LONGEST_INTEGER = 1024
"""Bits of an integer that is shown in full."""
_SHOWN = _Shown()


def shown(value: object) -> str:
    """Return a decoded JSON value as part of a message, however deep or large it is: never raises on one."""
    return _SHOWN.repr(value)


@dataclass(frozen=True, slots=True)
class AnswerText:
    """The two texts of one response, untrimmed and with lone surrogates kept."""

    reasoning: str
    answer: str

    @property
    def judge_text(self) -> str:
        """The answer as a judge is shown it: scrubbed, or `BLANK_ANSWER` when nothing is left after trimming."""
        return scrub(self.answer) if self.answer.strip() else BLANK_ANSWER


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the conversation that the answers continue, scrubbed."""

    role: str
    content: str


def read_output(output: object) -> AnswerText:
    """Read the texts out of a response's decoded `output` (contract 7.1).

    Reasoning is the text of all summaries of `reasoning` items, the answer the text of all `output_text` parts of
    `message` items; both are concatenated without a separator.
    """
    reasoning: list[str] = []
    answer: list[str] = []
    for item in _objects(output):
        if item.get("type") == "reasoning":
            reasoning.extend(_texts(item.get("summary"), None))
        elif item.get("type") == "message":
            answer.extend(_texts(item.get("content"), ("output_text",)))
    return AnswerText("".join(reasoning), "".join(answer))


def conversation(prompt: object) -> tuple[Turn, ...]:
    """Read the turns out of `responses_create_params.input` (contract 7.5).

    A string is one user turn. Of a list only messages count, an item without a type being one; reasoning and tool items
    are dropped. A list content is the concatenation of its `input_text` and `output_text` parts.
    """
    if isinstance(prompt, str):
        return (Turn("user", scrub(prompt)),)
    return tuple(_turn(item) for item in _objects(prompt) if item.get("type") in (None, "message"))


def _turn(message: dict[str, object]) -> Turn:
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, str):
        content = "".join(_texts(content, ("input_text", "output_text")))
    return Turn(scrub(role) if isinstance(role, str) and role else "user", scrub(content))


def _objects(value: object) -> Iterator[dict[str, object]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _texts(parts: object, types: tuple[str, ...] | None) -> Iterator[str]:
    for part in _objects(parts):
        text = part.get("text")
        if isinstance(text, str) and (types is None or part.get("type") in types):
            yield text
