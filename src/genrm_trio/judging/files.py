"""Files that an operator names: what is read of one has an end.

A device such as `/dev/zero` gives bytes for as long as somebody reads. A pipe ends when its writer does.
"""

import errno
import os
import stat
from pathlib import Path
from typing import IO, Final

LARGEST_TEXT: Final = 32 * 1024 * 1024
"""Bytes of a configuration or of a template: far more than anybody writes, and little memory."""


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, of at most LARGEST_TEXT. Raises OSError and UnicodeDecodeError."""
    with path.open("rb") as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST_TEXT} bytes", str(path))
    return content.decode("utf-8")


def refuse_device(file: IO[bytes], path: Path) -> None:
    """Raise OSError when an open file, of which all is read, is a character device."""
    if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
        raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
