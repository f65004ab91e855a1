"""The command, two of whose paths have a defect: what checks a request's head raises there what it never should.

Run as a program in the command's place. What it raises is told by path, for the test that asks for it.
"""

from collections.abc import Callable, Mapping
from typing import Final

import h11

from genrm_trio.ops.cli import main
from genrm_trio.web.serving.connection import Connection

DEFECTS: Final[Mapping[str, Callable[[], Exception]]] = {
    "/plain": lambda: RuntimeError("a defect"),
    "/grouped": lambda: ExceptionGroup("two defects", [ValueError("the first"), KeyError("the second")]),
}


def fail_at_some_paths() -> None:
    """Put the defects in."""
    check = Connection._check

    def checked(self: Connection, request: h11.Request) -> bytes:
        if defect := DEFECTS.get(request.target.decode()):
            raise defect()
        return check(self, request)

    Connection._check = checked  # type: ignore[method-assign]


if __name__ == "__main__":
    fail_at_some_paths()
    main()
