"""Messages that are not what HTTP says, and the statuses that may answer them: none at all is always right."""

from dataclasses import dataclass

__all__ = ["MALFORMED", "Malformed"]


@dataclass(frozen=True)
class Malformed:
    name: str
    sent: bytes
    statuses: frozenset[int]


_REFUSED = frozenset({400, 403, 404, 405, 408, 411, 413, 414, 415, 417, 421, 426, 431})
_POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


def _refused(name: str, sent: bytes) -> Malformed:
    return Malformed(name, sent, _REFUSED)


def _taken(name: str, sent: bytes) -> Malformed:
    """Some read it kindly."""
    return Malformed(name, sent, _REFUSED | {200})


MALFORMED: tuple[Malformed, ...] = (
    _refused("a negative length", _POST + b"Content-Length: -5\r\n\r\n{}"),
    _refused("a length of letters", _POST + b"Content-Length: ten\r\n\r\n{}"),
    _refused("a length of many digits", _POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}"),
    _refused("more bytes than a body may have", _POST + b"Content-Length: 99999999999\r\n\r\n{}"),
    _refused("two lengths", _POST + b"Content-Length: 2\r\nContent-Length: 20\r\n\r\n{}"),
    _refused("a length with a plus", _POST + b"Content-Length: +2\r\n\r\n{}"),
    _refused("a shorter body than its length", _POST + b"Content-Length: 200\r\n\r\n{}"),
    _refused("a longer body than its length", _POST + b"Content-Length: 2\r\n\r\n{}{}{}{}"),
    _refused("a length and chunks", _CHUNKED[:-2] + b"Content-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    _refused("a chunk of no size", _CHUNKED + b"\r\n{}\r\n0\r\n\r\n"),
    _refused("a chunk of letters", _CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n"),
    _refused("a chunk of negative size", _CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n"),
    _refused("a chunk of too many digits", _CHUNKED + b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n"),
    _refused("a chunk longer than it says", _CHUNKED + b"1\r\n{}}}}\r\n0\r\n\r\n"),
    _refused("chunks without an end", _CHUNKED + b"2\r\n{}\r\n"),
    _refused("an unknown coding", _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    _refused("a compressed body", _POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
    _refused("an expectation", _POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}"),
    _taken("a long header", b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"),
    _taken("many headers", b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 5000 + b"\r\n"),
    _refused("a long path", b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    _refused("a header without a colon", b"GET /health HTTP/1.1\r\nHost x\r\n\r\n"),
    _refused("a header with a NUL", b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n"),
    _refused("a header of no name", b"GET /health HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n"),
    _taken("a folded header", b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n"),
    _taken("no host", b"GET /health HTTP/1.1\r\n\r\n"),
    _taken("two hosts", b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
    _taken("line feeds alone", b"GET /health HTTP/1.1\nHost: x\n\n"),
    _refused("another version", b"GET /health HTTP/7.3\r\nHost: x\r\n\r\n"),
    _taken("HTTP 0.9", b"GET /health\r\n\r\n"),
    _refused("HTTP 2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    _taken("an upgrade", b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
    _refused(
        "a websocket",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ),
    _refused("TLS", bytes.fromhex("16030100a5010000a10303") + b"\x5a" * 160),
    _refused("no method", b" /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    _refused("an unknown method", b"GOOSE /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    _refused("a method too many", b"DELETE /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"),
    _refused("a proxy's request", b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
    _taken("an absolute address", b"GET http://example.com/health HTTP/1.1\r\nHost: x\r\n\r\n"),
    _refused("a path upwards", b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"),
    _refused("a path of no UTF-8", b"GET /%ff%fe%00 HTTP/1.1\r\nHost: x\r\n\r\n"),
    _refused("bytes", bytes(range(256)) * 8),
    _refused("nothing but line ends", b"\r\n" * 2000),
    _refused("no JSON", _POST + b"Content-Length: 1\r\n\r\n{"),
    _refused("deep JSON", _POST + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000),
    _refused("no UTF-8", _POST + b"Content-Length: 11\r\n\r\n" + b'{"a": "\xff\xfe"}'),
    _refused("a length in two fields", _POST + b"Content-Length: 2, 2\r\n\r\n{}"),
)
