"""Whether a host or a judge's address can be used, told before anything is connected.

The settings and the endpoint ask here, so that what one of them takes the other does not refuse.
"""

import re
from typing import Final

import httpx2

_FORM: Final = re.compile(r"https?://[^\s?#]+", re.IGNORECASE)
HIGHEST_PORT: Final = 65535


def checked_host(host: str) -> str:
    """Return a host's name or number. Raises ValueError for one that no resolver can be asked for."""
    if not host.isprintable() or " " in host:
        raise ValueError("a host has no spaces and no control characters in it")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("a host's name is of labels of 1 to 63 characters, with a dot between them") from None
    return host


def checked_base(base_url: str) -> httpx2.URL:
    """Return a judge's address, without a `/v1` at its end. Raises ValueError, whose text holds no password."""
    text = base_url.strip()
    if "@" in text:
        raise ValueError("an address has no user or password in it: api_key is the place for a secret")
    if not _FORM.fullmatch(text):
        raise ValueError("an address looks like http://host:port, without a query")
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise ValueError(f"an address looks like http://host:port: {error}") from None
    if not url.host:
        raise ValueError("an address looks like http://host:port: the host is missing")
    if url.port is not None and not 0 < url.port <= HIGHEST_PORT:
        raise ValueError(f"an address has a port from 1 to {HIGHEST_PORT}, not {url.port}")
    checked_host(url.raw_host.decode("ascii"))
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1") or "/")
