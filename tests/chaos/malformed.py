"""Messages that are not what HTTP says, and the statuses that may answer them: none at all is always right."""

from dataclasses import dataclass

__all__ = ["MALFORMED", "Malformed"]


@dataclass(frozen=True)
class Malformed:
    name: str
    sent: bytes
    statuses: frozenset[int]


_REFUSED = frozenset({400, 403, 404, 405, 408, 411, 413, 414, 415, 417, 421, 426, 431})
_HOST = b"Host: x"
_WEBSOCKET = (b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
_POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


def _asking(line: bytes, *fields: bytes) -> bytes:
    """A request without a body."""
    return b"\r\n".join([line, *fields, b"", b""])


def _health(*fields: bytes) -> bytes:
    return _asking(b"GET /health HTTP/1.1", *fields)


def _upgrade(protocol: bytes) -> tuple[bytes, bytes]:
    return b"Connection: Upgrade", b"Upgrade: " + protocol


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
    _taken("a long header", _health(_HOST, b"X: " + b"a" * 200_000)),
    _taken("many headers", _health(_HOST, *[b"X: y"] * 5000)),
    _refused("a long path", _asking(b"GET /" + b"a" * 200_000 + b" HTTP/1.1", _HOST)),
    _refused("a header without a colon", _health(b"Host x")),
    _refused("a header with a NUL", _health(_HOST, b"X: a\0b")),
    _refused("a header of no name", _health(_HOST, b": y")),
    _taken("a folded header", _health(_HOST, b"X: a", b" b")),
    _taken("no host", _health()),
    _taken("two hosts", _health(_HOST, b"Host: y")),
    _taken("line feeds alone", b"GET /health HTTP/1.1\nHost: x\n\n"),
    _refused("another version", _asking(b"GET /health HTTP/7.3", _HOST)),
    _taken("HTTP 0.9", b"GET /health\r\n\r\n"),
    _refused("HTTP 2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    _taken("an upgrade", _health(_HOST, *_upgrade(b"h2c"))),
    _refused("a websocket", _asking(b"GET /v1/models HTTP/1.1", _HOST, *_upgrade(b"websocket"), *_WEBSOCKET)),
    _refused("TLS", bytes.fromhex("16030100a5010000a10303") + b"\x5a" * 160),
    _refused("no method", _asking(b" /health HTTP/1.1", _HOST)),
    _refused("an unknown method", _asking(b"GOOSE /health HTTP/1.1", _HOST)),
    _refused("a method too many", _asking(b"DELETE /v1/completions HTTP/1.1", _HOST)),
    _refused("a proxy's request", _asking(b"CONNECT example.com:443 HTTP/1.1", _HOST)),
    _taken("an absolute address", _asking(b"GET http://example.com/health HTTP/1.1", _HOST)),
    _refused("a path upwards", _asking(b"GET /../../etc/passwd HTTP/1.1", _HOST)),
    _refused("a path of no UTF-8", _asking(b"GET /%ff%fe%00 HTTP/1.1", _HOST)),
    _refused("bytes", bytes(range(256)) * 8),
    _refused("nothing but line ends", b"\r\n" * 2000),
    _refused("no JSON", _POST + b"Content-Length: 1\r\n\r\n{"),
    _refused("deep JSON", _POST + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000),
    _refused("no UTF-8", _POST + b"Content-Length: 11\r\n\r\n" + b'{"a": "\xff\xfe"}'),
    _refused("a length in two fields", _POST + b"Content-Length: 2, 2\r\n\r\n{}"),
)
