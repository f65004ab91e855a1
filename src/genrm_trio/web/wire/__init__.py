"""Request bodies in, reply bodies out, as strict JSON and without making objects of what is only passed on."""

from genrm_trio.web.wire.bodies import (
    Close,
    Compare,
    Seed,
    TooManyEntries,
    read_aggregate,
    read_close,
    read_compare,
    read_seed,
)
from genrm_trio.web.wire.strict import Body
from genrm_trio.web.wire.verify import Echo, VerifyRequest, read_verify

__all__ = [
    "Body",
    "Close",
    "Compare",
    "Echo",
    "Seed",
    "TooManyEntries",
    "VerifyRequest",
    "read_aggregate",
    "read_close",
    "read_compare",
    "read_seed",
    "read_verify",
]
