"""One address that judges: where it is, its key, and one POST to it.

No retry and no choice here: `transport` loops, `panel` chooses.
"""

import json
import re
import zlib
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote

import httpx2

from genrm_trio.judging.address import checked_base
from genrm_trio.judging.faults import NoReply, ReplyCut, ReplyTooLarge
from genrm_trio.judging.lanes import Lanes
from genrm_trio.judging.offload import off_loop
from genrm_trio.judging.text import scrub, shown

ERROR_BODY_BYTES: Final = 65536
"""How much is read of a reply that is an error."""
HEAD_CHARS: Final = 4096
"""How much of a reply is kept to word an error with."""
MASK: Final = "***"

_KEY = re.compile(r"[!-~]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """The configuration of one endpoint.

    `base_url` is without `/v1`; `api_key` goes into `Authorization` and nowhere else; `model` goes into the body;
    `weight` is this endpoint's share among its panel.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: `headers` are looked up in any case, `body` is whole unless `status` is an error."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Endpoint:
    """One address with its connections.

    Raises ValueError when the address cannot be used; the text never holds the key.
    """

    def __init__(self, address: Address, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._base = _checked_base(address.base_url)
        if address.api_key is not None and not _KEY.fullmatch(address.api_key):
            raise ValueError("judge api_key must be visible ASCII without spaces")
        if not (0 < address.weight < float("inf")):
            raise ValueError(f"judge weight must be above 0 and finite, not {address.weight}")
        self.model = address.model
        self.weight = address.weight
        self.label = self._base.netloc.decode("ascii") + self._base.path.rstrip("/")
        if address.model is not None:
            self.label += f"#{address.model}"
        self.refused: set[str] = set()
        """Features of a request that this endpoint has refused by name, remembered for its life."""
        self.transport = Lanes() if transport is None else transport
        self._secrets = _forms(address.api_key)
        # No cookie and no prefix: judging is shared by a group and inherits nothing of one member.
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        self._headers["accept-encoding"] = "identity"
        if address.api_key is not None:
            self._headers["authorization"] = f"Bearer {address.api_key}"

    def __repr__(self) -> str:
        return f"<Endpoint {self.label}>"

    async def post(self, path: str, content: bytes, *, limit: int) -> Reply:
        """POST a JSON body and read the whole reply, at most `limit` bytes of it.

        Proxies of the environment are not used, redirects not followed: the address is the judge's. Raises
        httpx2.HTTPError, `faults.ReplyTooLarge` among others. Of an error's body a part may be missing.
        """
        url = self._base.copy_with(raw_path=self._base.raw_path.rstrip(b"/") + path.encode("ascii"))
        request = httpx2.Request("POST", url, headers=self._headers, content=content)
        response = await self.transport.handle_async_request(request)
        try:
            if 200 <= response.status_code < 300:
                body = await _read(response, limit)
            else:
                body = await _read_error(response)
        finally:
            await response.aclose()
        return Reply(response.status_code, response.headers, body)

    def head(self, body: bytes) -> str:
        """Return the start of a reply as text that may be shown: at most HEAD_CHARS characters."""
        return self.clean(body[: 4 * HEAD_CHARS].decode("utf-8", "replace"))[:HEAD_CHARS]

    def clean(self, text: str) -> str:
        """Return the text as plain valid Unicode in which the key is masked."""
        text = scrub(text)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    async def aclose(self) -> None:
        """Close the connections."""
        await self.transport.aclose()


def _checked_base(base_url: str) -> httpx2.URL:
    try:
        return checked_base(base_url)
    except ValueError as error:
        raise ValueError(f"judge base_url: {error}") from None


def _forms(secret: str | None) -> tuple[str, ...]:
    """Return the ways in which a reply may echo a secret, the longest first."""
    if secret is None:
        return ()
    return tuple(sorted({secret, json.dumps(secret)[1:-1], quote(secret, safe="")}, key=len, reverse=True))


async def _read(response: httpx2.Response, limit: int) -> bytes:
    parts = bytearray()
    async with aclosing(response.aiter_raw()) as chunks:
        async for chunk in chunks:
            parts += chunk
            if len(parts) > limit:
                raise ReplyTooLarge(f"the reply is larger than max_reply_bytes = {limit}")
    coding, sent = _coding(response), bytes(parts)
    return sent if coding is None else await off_loop(len(sent), partial(_decompressed, coding, sent, limit))


def _coding(response: httpx2.Response) -> str | None:
    """Return how the body is compressed, which it was asked not to be."""
    coding = response.headers.get("content-encoding", "").strip().lower()
    return None if coding in {"", "identity"} else coding


def _decompressed(coding: str, sent: bytes, limit: int) -> bytes:
    """Undo one compression, to at most `limit` bytes. Raises ReplyTooLarge, and DecodingError for any other coding."""
    if coding not in {"gzip", "x-gzip", "deflate"}:
        raise httpx2.DecodingError(f"content-encoding {shown(coding)}, expected none")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        body = inflate.decompress(sent, limit + 1)
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from None
    if len(body) > limit:
        raise ReplyTooLarge(f"the reply is larger than max_reply_bytes = {limit}")
    if not inflate.eof:
        raise httpx2.DecodingError("the compressed body has no end")
    return body


async def _read_error(response: httpx2.Response) -> bytes:
    """Read the start of an error's body: its status tells the class, even when the connection is lost now."""
    parts = bytearray()
    with suppress(ReplyCut, NoReply):
        async with aclosing(response.aiter_raw()) as chunks:
            async for chunk in chunks:
                parts += chunk
                if len(parts) >= ERROR_BODY_BYTES:
                    break
    sent = bytes(parts[:ERROR_BODY_BYTES])
    if _coding(response) is None:
        return sent
    with suppress(zlib.error):
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(sent, ERROR_BODY_BYTES)
    return b""
