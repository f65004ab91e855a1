"""Requests that try to knock a server over, by what they are."""

from tests.web.serving_harness import HEALTH

BIG = 10**30

HOSTILE: dict[str, bytes] = {
    "websocket upgrade with a byte behind it": (
        b"GET / HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\nX"
    ),
    "websocket upgrade": (
        b"GET /health HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ),
    "CONNECT": b"CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\n\x16\x03\x01",
    "length and encoding": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two lengths": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nhello",
    "absurd length": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\nx" % BIG,
    "long length": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999\r\n\r\nx",
    "negative length": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n",
    "length with a plus": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: +1\r\n\r\nx",
    "chunk size of a planet": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFFFFF\r\n"
    ),
    "bad chunk": b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "endless chunk extension": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 200_000
    ),
    "unknown encoding": b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "long header": b"GET /health HTTP/1.1\r\nHost: t\r\nX: " + b"a" * 400_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: t\r\n" + b"X: a\r\n" * 60_000 + b"\r\n",
    "long target": b"GET /" + b"a" * 400_000 + b" HTTP/1.1\r\nHost: t\r\n\r\n",
    "binary garbage": bytes(range(256)) * 40,
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "h2c upgrade": (
        b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    ),
    "HTTP/0.9": b"GET /health\r\n",
    "HTTP/3.7": b"GET /health HTTP/3.7\r\nHost: t\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\x00b\r\n\r\n",
    "bytes above ASCII in the target": b"GET /\xff\xfe HTTP/1.1\r\nHost: t\r\n\r\n",
    "escaped garbage in the target": b"GET /%ff%00%zz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    "no path": b"GET ?x HTTP/1.1\r\nHost: t\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n",
    "absolute target": b"GET http://[::bad/health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    "header folding": b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\r\n  b\r\nConnection: close\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : t\r\n\r\n",
    "half a head": b"GET /health HTT",
    "half a body": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf",
    "nothing": b"",
    "empty lines": b"\r\n\r\n\r\n",
    "form": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; boundary=\r\nConnection: close\r\n"
        b"Content-Length: 6\r\n\r\n--\r\n--"
    ),
    "method of the moon": b"M\xc3\x96\xc3\x96N /health HTTP/1.1\r\nHost: t\r\n\r\n",
    "crash in a handler": b"POST /crash HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "pipelined garbage": HEALTH + b"\x00\x01\x02\r\n\r\n",
}
