"""Bearer tokens: compared in constant time, and before anything of a body is read."""

import hmac

from quart import request

from genrm_trio.web import errors
from genrm_trio.web.errors import Reply


def bearer_is(token: str | None) -> bool:
    """Whether the current request carries this bearer token; true when none is asked for."""
    if token is None:
        return True
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "surrogatepass"), token.encode("utf-8"))
    return same and scheme.lower() == "bearer"


def unauthorized() -> Reply:
    """A data route was asked without its token."""
    reply = errors.detail(401, "unauthorized", "this route requires a bearer token")
    return Reply(reply.status, reply.body, {**reply.headers, "www-authenticate": "Bearer"})


def control_unauthorized() -> Reply:
    """A control route was asked without its token (contract 10.1)."""
    reply = errors.control("unauthorized", "control calls require their bearer token")
    return Reply(reply.status, reply.body, {**reply.headers, "www-authenticate": "Bearer"})
