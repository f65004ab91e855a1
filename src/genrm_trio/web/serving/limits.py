"""Every bound of the server, by name. A bound is a number here; what happens at it is where it is used."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Bounds of connections and requests. Times are seconds, sizes are bytes.

    max_connections: open at once; beyond it a connection gets one answer, 503 `too_busy`.
    refusal_connections: how many beyond it are still read, so that their clients can read that answer; above
        that they get it unread and are closed at once.
    max_request_bytes: a longer body is a 413, whose rest is read and dropped up to as much again.
    max_header_bytes: request line and headers together; longer is a 431.
    max_header_fields: lines of a head; more is a 431.
    max_framing_bytes: of a chunked body, what is not the body: sizes, extensions, trailers; more is a 413.
    max_pipelined_bytes: kept of what a client sends while its request is being answered; more ends the connection
        after the answer.
    keep_alive_s: an idle connection is closed; must be above the 15 s that clients keep idle sockets.
    header_timeout_s: from a request's first byte to the end of its headers; later is a 408.
    body_stall_s, body_timeout_s: without a byte of the body, and for all of it; later is a 408.
        Neither runs once the body is complete: a held request has no time limit.
    write_stall_s: a client that takes no byte of its answer for so long is cut.
    linger_s: after an answer that leaves bytes of the request unread, how long they are read and dropped.
    refused_body_drain_s: the same when the body itself was refused.
    half_close_probe_s: between two probes whether a client that closed its writing side is still there.
    keep_alive_idle_s: silence after which the kernel probes whether a held request's host still exists.
    backlog: connections that the kernel queues.
    retry_after_s: in the `Retry-After` header at a bound.
    shutdown_grace_s: from the signal to the end, whatever clients do.
    shutdown_reserve_s: the part of it that is kept for what follows the last answer.
    """

    max_connections: int = 33024
    refusal_connections: int = 512
    max_request_bytes: int = 64 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_header_fields: int = 256
    max_framing_bytes: int = 1024 * 1024
    max_pipelined_bytes: int = 64 * 1024
    keep_alive_s: float = 30.0
    header_timeout_s: float = 30.0
    body_stall_s: float = 30.0
    body_timeout_s: float = 600.0
    write_stall_s: float = 60.0
    linger_s: float = 2.0
    refused_body_drain_s: float = 30.0
    half_close_probe_s: float = 15.0
    keep_alive_idle_s: int = 60
    backlog: int = 4096
    retry_after_s: int = 1
    shutdown_grace_s: float = 5.0
    shutdown_reserve_s: float = 0.5


def reads_only(method: str, path: bytes) -> bool:
    """The least that is served at every bound and while draining: requests that only read."""
    return method in {"GET", "HEAD"}
