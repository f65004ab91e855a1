"""One line of an input file as a group to judge: a prompt, its answers, and what to judge them by.

| field | meaning |
| --- | --- |
| `id` (or `group_id`, `question_id`) | names the group in the output; else its line does |
| `prompt`, or `input`, or `conversation_history` | a text, or a list of turns or Responses items |
| `answers` (or `responses`, `response_objs`) | each a text, an object with `text`, or a Response with `output` |
| `principle`, `expected_rubric_ids` | as in `/verify` |

Other fields are passed over.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from genrm_trio.judging.text import AnswerText, conversation, read_output
from genrm_trio.runtime.evaluation import Contender


class GroupError(Exception):
    """A line is no group; the text says what is wrong with it, `id` what would have named the group."""

    def __init__(self, text: str, id: str | None = None) -> None:  # noqa: A002 - the field's name
        super().__init__(text)
        self.id = id


@dataclass(frozen=True, slots=True)
class Group:
    """One group to judge."""

    id: str
    contenders: tuple[Contender, ...]


def read_group(line: bytes, number: int) -> Group:
    """Read one input line; `number` stands in for a missing id.

    Raises:
        GroupError: the line is not JSON, or a field is missing or has another form.
    """
    name = str(number)
    try:
        decoded = json.loads(line)
        name = _name(decoded, name)
        return Group(name, _contenders(decoded))
    except GroupError as error:
        raise GroupError(str(error), name) from None
    except ValueError as error:
        raise GroupError(f"not JSON: {error}", name) from error
    except RecursionError:
        raise GroupError("nested too deeply", name) from None


def _name(decoded: object, otherwise: str) -> str:
    named = _first(decoded, "id", "group_id", "question_id") if isinstance(decoded, dict) else None
    return otherwise if named is None else str(named)


def _contenders(decoded: object) -> tuple[Contender, ...]:
    if not isinstance(decoded, dict):
        raise GroupError("not a JSON object")
    prompt = _first(decoded, "prompt", "input", "conversation_history")
    if not isinstance(prompt, str | list):
        raise GroupError("prompt (or input, or conversation_history) must be a text or a list")
    answers = _first(decoded, "answers", "responses", "response_objs")
    if not isinstance(answers, list):
        raise GroupError("answers (or responses, or response_objs) must be a list")
    turns = conversation(prompt)
    principle, rubric_ids = _principle(decoded), _rubric_ids(decoded)
    return tuple(Contender(turns, _answer(answer), principle, rubric_ids) for answer in answers)


def _first(fields: Mapping[str, object], *names: str) -> object:
    """Return the first of these fields that is there and not null."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _answer(answer: object) -> AnswerText:
    """Read one answer in any of its three forms."""
    if isinstance(answer, str):
        return AnswerText("", answer)
    if isinstance(answer, dict) and isinstance(answer.get("text"), str):
        return AnswerText("", answer["text"])
    if isinstance(answer, dict) and "output" in answer:
        return read_output(answer["output"])
    raise GroupError("an answer must be a text, an object with text, or a Response with output")


def _principle(fields: Mapping[str, object]) -> str | None:
    value = fields.get("principle")
    if value is not None and not isinstance(value, str):
        raise GroupError("principle must be a text")
    return value


def _rubric_ids(fields: Mapping[str, object]) -> tuple[int, ...] | None:
    value = fields.get("expected_rubric_ids")
    if value is None:
        return None
    if not isinstance(value, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
        raise GroupError("expected_rubric_ids must be a list of integers")
    return tuple(sorted(set(value)))
