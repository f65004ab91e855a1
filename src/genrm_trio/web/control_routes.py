"""The control plane over HTTP (contract 10): the token, the body, the words of a refusal, and a log line a call.

What a call does is the runtime's Control. These routes exist only when checkpoints are on, and pass every bound.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
import trio
from pydantic import ValidationError

from genrm_trio.checkpoints.calls import (
    Call,
    CommitCall,
    ForgetCall,
    PrepareCall,
    RenewCall,
    RestoreCall,
    ResumeCall,
    RetireCall,
    read_call,
)
from genrm_trio.checkpoints.errors import ControlRefused
from genrm_trio.core.outcome import JSON
from genrm_trio.runtime.control import Control
from genrm_trio.web import errors
from genrm_trio.web.errors import InvalidBody, Reply, TooLarge, to_json
from genrm_trio.web.requests import Reading, request_body
from genrm_trio.web.speaking import spoken
from genrm_trio.web.tokens import bearer_is, control_unauthorized
from genrm_trio.web.visits import Handler, Visit
from genrm_trio.web.wire.bodies import problems_of
from genrm_trio.web.wire.strict import decode, read_object

PREFIX = "/ng-control/v1/checkpoint"

log = structlog.get_logger(__name__)


class ControlRoutes:
    """The handlers of one control plane."""

    def __init__(self, control: Control, token: str, reading: Reading) -> None:
        self._control = control
        self._token = token
        self._reading = reading

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """Every route by method and path."""
        calls: dict[str, tuple[type[Call], Callable[[Any], Awaitable[Mapping[str, JSON]]]]] = {
            "prepare": (PrepareCall, self._control.prepare),
            "renew": (RenewCall, self._control.renew),
            "retire": (RetireCall, self._control.retire),
            "forget": (ForgetCall, self._control.forget),
            "commit": (CommitCall, self._control.commit),
            "restore": (RestoreCall, self._control.restore),
            "resume": (ResumeCall, self._control.resume),
        }
        found = {("POST", f"{PREFIX}/{name}"): self._call(name, *call) for name, call in calls.items()}
        return {("GET", f"{PREFIX}/status"): self._status, **found}

    async def _status(self, visit: Visit) -> Reply:
        if not bearer_is(self._token):
            return _unauthorized("status")
        return Reply(200, to_json(self._control.status()))

    def _call(self, name: str, model: type[Call], act: Callable[[Any], Awaitable[Mapping[str, JSON]]]) -> Handler:
        async def handler(visit: Visit) -> Reply:
            if not bearer_is(self._token):
                return _unauthorized(name)
            try:
                call = await self._read(model)
            except InvalidBody:
                _refused_unread(name, 422, "invalid_request")
                raise
            except TooLarge:
                _refused_unread(name, 413, "too_large")
                raise
            told = log.bind(call=name, checkpoint_id=call.checkpoint_id)
            if (late_s := time.time() - call.deadline_ts) >= 0:
                when = f"deadline_ts {call.deadline_ts:.15g} lies {late_s:.0f} s in the past"
                told.warning("control_deadline_past", text=f"{when}: it is absolute, in Unix seconds")
            try:
                reply = await act(call)
            except ControlRefused as refused:
                told.warning("control_refused", status=refused.status, code=refused.code, text=refused.detail)
                return errors.control(refused.code, refused.detail, status=refused.status)
            except trio.Cancelled:
                told.info("control_call_left")
                raise
            told.info("control_call", phase=reply.get("phase", self._control.phases.visible_phase.value))
            return Reply(200, await spoken(reply))

        return handler

    async def _read(self, model: type[Call]) -> Call:
        body = request_body()
        await self._reading.read_body(read_object, body)
        try:
            try:
                return await read_call(model, bytes(body))
            except ValidationError as error:
                if error.errors()[0]["type"] != "json_invalid":
                    raise
            # The body is JSON, as was seen above, but not to pydantic: an escaped lone surrogate, or deep nesting.
            return model.model_validate(await self._reading.read(_decoded, body))
        except ValidationError as error:
            raise InvalidBody(*problems_of(error)) from None


def _unauthorized(name: str) -> Reply:
    _refused_unread(name, 401, "unauthorized")
    return control_unauthorized()


def _refused_unread(name: str, status: int, code: str) -> None:
    """Log a call of which nothing is known to be right: nothing of it, and not each time, for anybody can send it."""
    log.warning("control_refused", call=name, status=status, code=code, once=(name, code))


def _decoded(body: bytearray) -> dict[str, Any]:
    return {name: decode(raw) for name, raw in read_object(body).items()}
