"""Connections as hostile peers write them: a grammar of HTTP/2 frames and gRPC messages, mostly right, here and there odd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from support.ext_proc import BUFFERED, DUPLEX, request_body, request_headers, response_body, response_headers
from support.ext_proc_client import METHOD, PREFACE, Frame, header_block
from support.http2 import frame, framed
from support.peer import HEALTH, REFLECTION, data

CONTINUATION, PUSH_PROMISE, PRIORITY = 9, 5, 2
PATHS = (METHOD, METHOD, METHOD, HEALTH, REFLECTION, "/grpc.health.v1.Health/Check", "/none", "")
MESSAGES = [
    message.SerializeToString()
    for message in (
        request_headers(config=DUPLEX),
        request_headers(config=BUFFERED),
        request_headers(end=True),
        request_body(b'{"model":"m","prompt":"p"}', end=True),
        request_body(b"x"),
        response_headers(),
        response_body(b"data: {}\n\n"),
        response_body(end=True),
    )
]
BOMB = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000
"""A header field of 4 kB that goes into the table of HPACK; a byte names it from then on."""


class _Connection:
    """What one peer writes, a few streams at a time."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._next, self._open = rng, 1, list[int]()

    def written(self) -> bytes:
        rng = self._rng
        acts: Sequence[Callable[[], bytes]] = (
            self._opened, self._opened, self._messages, self._messages, self._messages, self._pieces, self._reset,
            self._settings, self._window, self._ping, self._continued, self._bomb, self._strange, self._odd_message,
        )  # fmt: skip
        greeting = PREFACE + frame(Frame.SETTINGS, b"", 0, 0) + frame(Frame.SETTINGS, b"", 1, 0)
        usual = rng.sample(acts, 4)
        wire = b"".join(rng.choice(usual)() for _ in range(rng.choice((3, 30, 300))))
        if rng.random() < 0.3:
            wire *= rng.choice((2, 20))
        wire = wire[: 1 << 20]
        if rng.random() < 0.2:
            wire = self._broken(wire)
        return (greeting if rng.random() < 0.95 else b"") + wire

    def _stream(self) -> int:
        rng = self._rng
        if self._open and rng.random() < 0.95:
            return rng.choice(self._open)
        return rng.choice((0, 1, 2, self._next, self._next + 100, 2**31 - 1))

    def _opened(self) -> bytes:
        stream, self._next = self._next, self._next + 2
        self._open.append(stream)
        flags = self._rng.choice((4, 4, 4, 5, 4 | 8, 4 | 32))
        return frame(Frame.HEADERS, header_block("localhost", self._rng.choice(PATHS)), flags, stream)

    def _messages(self) -> bytes:
        rng = self._rng
        count = rng.choice((1, 1, 3, 500))
        return data(self._stream(), b"".join(framed(rng.choice(MESSAGES)) for _ in range(count)))

    def _pieces(self) -> bytes:
        """Return a message in frames of a byte or so each."""
        stream, whole, size = self._stream(), framed(self._rng.choice(MESSAGES)), self._rng.choice((1, 2, 7))
        pieces = (whole[at : at + size] for at in range(0, len(whole), size))
        return b"".join(frame(Frame.DATA, piece, 0, stream) for piece in pieces)

    def _odd_message(self) -> bytes:
        rng = self._rng
        head = rng.choice(
            (b"\0\xff\xff\xff\xff", b"\1\0\0\0\1", b"\0\0\0", b"\0\4\0\0\0", b"\0\0\0\0\0" * 1000)
        )
        return data(self._stream(), head + rng.randbytes(rng.choice((0, 1, 1000, 60_000))))

    def _reset(self) -> bytes:
        return frame(Frame.RST_STREAM, self._number(), 0, self._stream())

    def _settings(self) -> bytes:
        rng = self._rng
        pairs = (rng.randrange(0, 11).to_bytes(2) + self._number() for _ in range(rng.choice((0, 1, 6, 40))))
        return frame(Frame.SETTINGS, b"".join(pairs), rng.choice((0, 0, 0, 1)), 0)

    def _window(self) -> bytes:
        return frame(Frame.WINDOW_UPDATE, self._number(), 0, self._rng.choice((0, self._stream())))

    def _ping(self) -> bytes:
        return frame(Frame.PING, bytes(8), self._rng.choice((0, 0, 1)), 0) * self._rng.choice((1, 100))

    def _continued(self) -> bytes:
        rng = self._rng
        stream, self._next = self._next, self._next + 2
        block, n = header_block("localhost"), rng.choice((1, 3, 20))
        pieces = [
            block[at::n] if rng.random() < 0.1 else block[at : at + 10] for at in range(0, len(block), 10)
        ]
        last = frame(CONTINUATION, pieces[-1], 4, stream)
        middle = b"".join(frame(CONTINUATION, piece, 0, stream) for piece in pieces[1:-1])
        return frame(Frame.HEADERS, pieces[0], 0, stream) + middle + last

    def _bomb(self) -> bytes:
        stream, self._next = self._next, self._next + 4
        names = self._rng.choice((1, 15, 2000))
        return frame(Frame.HEADERS, BOMB, 4, stream) + frame(Frame.HEADERS, b"\xbe" * names, 4, stream + 2)

    def _strange(self) -> bytes:
        rng = self._rng
        kind = rng.choice((PRIORITY, PUSH_PROMISE, Frame.GOAWAY, CONTINUATION, 10, 16, 200, Frame.DATA))
        return frame(
            kind, rng.randbytes(rng.choice((0, 1, 4, 5, 8, 100))), rng.randrange(256), self._stream()
        )

    def _number(self) -> bytes:
        return self._rng.choice((0, 1, 8, 65_535, 2**31 - 1, 2**31, 2**32 - 1)).to_bytes(4)

    def _broken(self, wire: bytes) -> bytes:
        changed = bytearray(wire)
        for _ in range(self._rng.randint(1, 5)):
            if changed:
                changed[self._rng.randrange(len(changed))] = self._rng.randrange(256)
        return bytes(changed[: self._rng.randint(0, len(changed))])


def inputs(rng: Random) -> Iterator[bytes]:
    """Yield what a peer writes on one connection after the other, without end."""
    while True:
        yield _Connection(rng).written()
