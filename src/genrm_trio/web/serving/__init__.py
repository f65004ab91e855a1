"""The guarded HTTP/1.1 server: connections as tasks of our own nursery, bounded, and ended when they should.

Hypercorn speaks ASGI here (its `HTTPStream`, configuration and typing) and h11 speaks HTTP; the pump between a
socket and the two is ours. Hypercorn's own pump (`TCPServer`, `H11Protocol`) is not used. It reads pipelined
bytes in the task that must notice a disconnect, writes under a shield, opens websockets and HTTP/2 on its own,
closes a connection from inside the application's last `send`, and has no place for a bound on body, header or
connections; each of those needs a private method replaced, and little of it would be left.

No routes and no knowledge of cohorts live here.
"""

from genrm_trio.web.serving.descriptors import Sockets, raise_descriptor_limit
from genrm_trio.web.serving.limits import ServingLimits, reads_only
from genrm_trio.web.serving.server import Server, listen, serve

__all__ = [
    "Server",
    "ServingLimits",
    "Sockets",
    "listen",
    "raise_descriptor_limit",
    "reads_only",
    "serve",
]
