"""What an event looks like in a trace: the fields that a check reads, their types and ranges; what is wrong, in words.

Replies that have the right type and are wrong all the same are left to the spec, which knows the right ones.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from genrm_trio.core.identity import parse_capture_key
from genrm_trio.core.outcome import FailureCode
from genrm_trio.core.registry import EndedBy
from genrm_trio.core.trace import ACTIONS

LARGEST: Final = 2**31 - 1
"""TLC's integers have 32 bits."""

LONGEST_VALUE: Final = 80
"""Characters of a wrong value that are shown."""


def _expected(what: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "{what}", {"what": what})


def _within_the_cohort(index: int, info: ValidationInfo) -> int:
    size: Any = info.context
    if not 0 <= index < size:
        raise _expected(f"0 to {size - 1}, as cohort_size in line 1 is {size}")
    return index


def _episode(key: str) -> str:
    try:
        attempt = parse_capture_key(key).attempt
    except ValueError as error:
        raise _expected(f"an episode's key: {error}") from None
    if attempt > LARGEST:
        raise _expected(f"an attempt of at most {LARGEST}, the largest number that TLC knows")
    return key


def _word(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise _expected("printable ASCII")
    return text


def _submit_reply(reply: Any) -> Any:
    match reply:
        case {"waits": True} | {"told": dict()} if len(reply) == 1:
            return reply
        case {"refused": str(code)} | {"told": str(code)} if len(reply) == 1:
            return _word(code) and reply
    raise _expected('{"waits": true}, {"refused": a code} or {"told": a result or what failed}')


Number: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST)]
Index: TypeAlias = Annotated[int, AfterValidator(_within_the_cohort)]
Episode: TypeAlias = Annotated[str, AfterValidator(_episode)]
Word: TypeAlias = Annotated[str, AfterValidator(_word)]
Result: TypeAlias = dict[str, Any]


class _Fields(BaseModel):
    """An object; fields that it has beyond those are not looked at."""

    model_config = ConfigDict(strict=True, extra="ignore")


def _fields(**types: Any) -> type[_Fields]:
    """An object with these fields, all of which must be there."""
    required: dict[str, Any] = {name: (kind, ...) for name, kind in types.items()}
    return create_model("Fields", __base__=_Fields, **required)


class _Outcome(_Fields):
    """The exported state of a session with an outcome."""

    group_id: str
    group_attempt: Number
    newest_attempt: Number
    rollout_index: Index
    prompt_digest: str
    response_digest: str
    result: Result = {}
    failure: str = ""

    @model_validator(mode="after")
    def has_one_outcome(self) -> "_Outcome":
        """A session's member has a result, or its cohort's judge failed."""
        if len(self.model_fields_set & {"result", "failure"}) != 1:
            raise _expected("either `result` or `failure` in it")
        return self


State: TypeAlias = Annotated[_Outcome | None, BeforeValidator(lambda state: state or None)]
"""Empty when the session has no outcome to keep."""


class _Saved(_Fields):
    """One record of a restore."""

    session: str
    episode: Episode
    state: State


_ANSWERED = _fields(answered=list[Number])
_COHORT = _fields(cohort=str)
_NOTHING = _fields()
_INIT = _fields(cohort_size=Annotated[int, Field(ge=1, le=LARGEST)], max_terminal_cohorts=Number)

_SHAPES: Mapping[str, tuple[type[_Fields], Any]] = {
    "Submit": (
        _fields(
            waiter=Number,
            session=str | None,
            episode=Episode | None,
            cohort=str,
            group=str | None,
            attempt=Number,
            index=Index,
            answer=str,
        ),
        _fields(reply=Annotated[Any, AfterValidator(_submit_reply)], evicted=list[str], superseded=list[str]),
    ),
    "Leave": (_fields(waiter=Number), bool),
    "ExpireCollection": (_COHORT, _ANSWERED),
    "Judged": (_fields(cohort=str, results=list[Result]), None),
    "JudgeFailed": (_COHORT, None),
    "Publish": (_COHORT, _fields(published=bool, answered=list[Number])),
    "Fail": (_fields(cohort=str, code=FailureCode), _ANSWERED),
    "Expire": (_COHORT, None),
    "ExpireWatermark": (_fields(group=str), None),
    "Seed": (_fields(session=str, episode=Episode | None), Word),
    "UseSession": (_fields(session=str, episode=Episode | None), bool),
    "EndSession": (_fields(session=str, episode=Episode | None, by=EndedBy), Word),
    "ExpireSession": (_fields(session=str), None),
    "CloseAdmission": (_NOTHING, None),
    "OpenAdmission": (_NOTHING, _fields(answered=list[Number], ended=list[str])),
    "Export": (_fields(group=str | None, anew=bool), _fields(states=dict[str, State])),
    "Restore": (_fields(states=list[_Saved]), None),
    "RefuseRestore": (_fields(reason=str), None),
    "Retire": (_fields(episodes=list[Episode]), _fields(ended=list[str], answered=list[Number])),
    "DeleteRestored": (_fields(sessions=list[str]), list[str]),
    "Forget": (_fields(rollouts=list[str]), None),
    "ShutDown": (_NOTHING, _ANSWERED),
}
"""By action: its arguments and its reply."""

_LINE = _fields(event=str, args=dict[str, Any], reply=Any)
_EVENTS = {name: _fields(args=_SHAPES[name][0], reply=_SHAPES[name][1]) for name in ACTIONS}
_BEGIN = _fields(args=_INIT)


def wrong_line(line: object) -> str | None:
    """What is wrong with a line as such, or None."""
    return _wrong(_LINE, line)


def wrong_init(args: object) -> str | None:
    """What is wrong with the bounds that a trace starts with, or None."""
    return _wrong(_BEGIN, {"args": args})


def wrong_event(name: str, args: object, reply: object, cohort_size: int) -> str | None:
    """What is wrong with an event, or None."""
    if name not in _EVENTS:
        return f"field `event` is {_shown(name)}, expected the name of an action, such as {ACTIONS[0]}"
    return _wrong(_EVENTS[name], {"args": args, "reply": reply}, cohort_size)


def _wrong(shape: type[_Fields], value: object, cohort_size: int = 0) -> str | None:
    try:
        shape.model_validate(value, context=cohort_size)
    except ValidationError as invalid:
        return _said(invalid.errors(include_url=False)[0])
    return None


def _said(error: ErrorDetails) -> str:
    path = "".join(map(_step, error["loc"])).removeprefix(".")
    if error["type"] == "missing":
        return f"field `{path}` is missing"
    where = f"field `{path}`" if path else "the line"
    return f"{where} is {_shown(error['input'])}, expected {_wanted(error)}"


def _step(part: int | str) -> str:
    """A name as such, a number or what a client made up in brackets."""
    return f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{json.dumps(part)}]"


def _wanted(error: ErrorDetails) -> str:
    match error["type"]:
        case "model_type" | "dict_type":
            return "an object"
        case "int_type":
            return "an integer"
        case "string_type":
            return "a text"
        case "bool_type":
            return "true or false"
        case "list_type":
            return "a list"
        case "none_required":
            return "null"
        case "greater_than_equal":
            return f"{error['ctx']['ge']} or more"
        case "less_than_equal":
            return f"at most {error['ctx']['le']}, the largest number that TLC knows"
    return error["msg"].removeprefix("Input should be ")


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
