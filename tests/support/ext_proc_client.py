"""Many ext-proc streams at a given rate over one connection, as Envoy has, from frames that were made before.

A gRPC library for Python takes as long for a stream as the server does; this takes a tenth of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import IntEnum, IntFlag

from kvatlas.api.extproc import ext_proc_pb2 as pb

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW, MAX_FRAME, INITIAL_WINDOW = 2**16 - 1, 2**14, 4
"""Values of HTTP/2 where no setting says otherwise, and the number of a setting."""

STATUS_OK = (b"\x0bgrpc-status\x010", b"\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x010")
"""The literal header of a good end, as HPACK writes it where no table may be used: its name as it is, or by Huffman code."""


class Frame(IntEnum):
    """Types of HTTP/2 frames that are read."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


class Flag(IntFlag):
    """Flags of frames; the first means ACK for settings and pings."""

    END_STREAM = 1
    ACK = 1
    END_HEADERS = 4


class Conversation:
    """One ext-proc stream: its replies, and its end.

    Attributes:
        answers: messages, in their order.
        ended: set to the word for what went wrong, None for nothing.
    """

    def __init__(self) -> None:
        self.answers: list[pb.ProcessingResponse] = []
        self.ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.on_answer: Callable[[], None] = lambda: None
        self._rest = b""

    def receive(self, data: bytes) -> None:
        """Take bytes of the stream."""
        self._rest += data
        while len(self._rest) >= 5 and len(self._rest) >= (end := 5 + int.from_bytes(self._rest[1:5])):
            self.answers.append(pb.ProcessingResponse.FromString(self._rest[5:end]))
            self._rest = self._rest[end:]
            self.on_answer()

    def end(self, wrong: str | None) -> None:
        """Take note of the end of the stream."""
        if not self.ended.done():
            self.ended.set_result(wrong)


class ExtProcClient(asyncio.Protocol):
    """One connection; made by `connected`."""

    def __init__(self, authority: str) -> None:
        self._headers = header_block(authority)
        self._open: dict[int, Conversation] = {}
        self._next_stream, self._received = 1, bytearray()
        self._unsent: dict[int, list[bytes]] = {}
        """Stream of `request` -> what waits for the server's windows."""
        self._initial_window = DEFAULT_WINDOW
        self._windows: dict[int, int] = {0: DEFAULT_WINDOW}
        """Stream, 0 for the connection -> bytes that may be sent; `converse` does not count."""
        self.transport: asyncio.Transport | None = None

    def converse(
        self, request: Sequence[pb.ProcessingRequest], response: Sequence[pb.ProcessingRequest]
    ) -> Conversation:
        """Open a stream: send the request at once, and the response after the reply to the request.

        Returns at once; the server ends the stream after the response.
        """
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        conversation = self._open[stream] = Conversation()
        answer = _frame(Frame.DATA, _messages(response), stream, Flag.END_STREAM)

        def routed() -> None:
            if len(conversation.answers) == len(request):
                self._write(answer)

        conversation.on_answer = routed
        self._write(
            _frame(Frame.HEADERS, self._headers, stream, Flag.END_HEADERS)
            + _frame(Frame.DATA, _messages(request), stream)
        )
        return conversation

    def request(self, messages: Sequence[pb.ProcessingRequest]) -> Conversation:
        """Open a stream that ends, on this side, with the last message of the request."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        conversation = self._open[stream] = Conversation()
        data = _messages(messages)
        pieces = [data[at : at + MAX_FRAME] for at in range(0, len(data), MAX_FRAME)]
        self._write(_frame(Frame.HEADERS, self._headers, stream, Flag.END_HEADERS))
        self._unsent[stream] = pieces
        self._windows[stream] = self._initial_window
        self._send_more()
        return conversation

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`. Allows the server to send as much as it likes, and no table for headers."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        settings = struct.pack(">HIHI", 1, 0, 4, MAX_WINDOW)
        more = struct.pack(">I", MAX_WINDOW - 65_535)
        self._write(PREFACE + _frame(Frame.SETTINGS, settings) + _frame(Frame.WINDOW_UPDATE, more))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        while len(self._received) >= 9:
            end = 9 + int.from_bytes(self._received[:3])
            if len(self._received) < end:
                break
            kind, flags = self._received[3], self._received[4]
            stream, payload = int.from_bytes(self._received[5:9]), bytes(self._received[9:end])
            del self._received[:end]
            self._take(kind, flags, stream, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        for stream in list(self._open):
            self._end(stream, f"the connection was lost: {exc}")

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        match kind:
            case Frame.DATA if stream in self._open:
                self._open[stream].receive(payload)
            case Frame.HEADERS if flags & Flag.END_STREAM:
                self._end(stream, None if any(each in payload for each in STATUS_OK) else repr(payload))
            case Frame.RST_STREAM:
                self._end(stream, f"reset with {int.from_bytes(payload)}")
            case Frame.WINDOW_UPDATE:
                if stream in self._windows:
                    self._windows[stream] += int.from_bytes(payload)
                    self._send_more()
            case Frame.SETTINGS | Frame.PING if not flags & Flag.ACK:
                if kind == Frame.SETTINGS:
                    self._set(payload)
                self._write(_frame(Frame(kind), payload if kind == Frame.PING else b"", 0, Flag.ACK))
            case Frame.GOAWAY:
                for open_stream in list(self._open):
                    self._end(open_stream, f"the server goes away: {payload!r}")
            case _:
                pass

    def _set(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == INITIAL_WINDOW:
                for stream in self._windows.keys() - {0}:
                    self._windows[stream] += value - self._initial_window
                self._initial_window = value
        self._send_more()

    def _send_more(self) -> None:
        for stream, pieces in tuple(self._unsent.items()):
            while pieces and len(pieces[0]) <= min(self._windows[0], self._windows[stream]):
                piece = pieces.pop(0)
                self._windows[0] -= len(piece)
                self._windows[stream] -= len(piece)
                self._write(_frame(Frame.DATA, piece, stream, 0 if pieces else Flag.END_STREAM))
            if not pieces:
                del self._unsent[stream], self._windows[stream]

    def _end(self, stream: int, wrong: str | None) -> None:
        self._unsent.pop(stream, None)
        self._windows.pop(stream, None)
        conversation = self._open.pop(stream, None)
        if conversation is not None:
            conversation.end(wrong)

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncGenerator[ExtProcClient]:
    """Open a connection to a server on this machine."""
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(
        lambda: ExtProcClient(f"127.0.0.1:{port}"), "127.0.0.1", port
    )
    try:
        yield client
    finally:
        transport.close()


def _frame(kind: Frame, payload: bytes, stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _messages(messages: Sequence[pb.ProcessingRequest]) -> bytes:
    parts = [message.SerializeToString() for message in messages]
    return b"".join(b"\0" + len(part).to_bytes(4) + part for part in parts)


def header_block(authority: str, path: str = METHOD) -> bytes:
    """Return the headers of a call in HPACK without tables: POST, http, and literals for all else."""
    named = [(b"\x04", path), (b"\x01", authority), (b"\x0f\x10", "application/grpc")]
    literals = b"".join(name + bytes((len(value),)) + value.encode() for name, value in named)
    return b"\x83\x86" + literals + b"\x00\x02te\x08trailers"
