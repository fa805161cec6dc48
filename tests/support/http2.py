"""A client of an HTTP/2 session, without sockets: another library's idea of the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events

from kvatlas.api.http2._native import Session

if TYPE_CHECKING:
    from kvatlas.api.http2._native import Event

PATH = "/a.Service/Method"
HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
OPENED, MESSAGE, ENDED, GONE, BROKEN, PASSED = range(6)


UNSENT_LIMIT = 1 << 20
"""Bytes that may wait for a client before its own messages are no longer taken."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """Return a gRPC message with its prefix."""
    return bytes([compressed]) + len(message).to_bytes(4) + message


def frame(kind: int, payload: bytes, flags: int, stream: int) -> bytes:
    """Return an HTTP/2 frame."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


ALL = 1 << 62
"""As much as there is, or as one likes."""


def session(
    *,
    max_streams: int = 100,
    max_message_bytes: int = 4 << 20,
    max_early_ends: int = 1000,
    spare_bytes: int = 0,
) -> Session:
    """Return the server's side of a connection."""
    return Session(
        max_streams=max_streams,
        max_message_bytes=max_message_bytes,
        max_early_ends=max_early_ends,
        spare_bytes=spare_bytes,
    )


def received(server: Session, data: bytes) -> list[Event]:
    """Return all events of the data, however many pieces of work it is."""
    events = server.receive(data, 0.0, ALL)
    while server.has_input():
        events += server.receive(b"", 0.0, ALL)
    return events


@dataclass
class CallResult:
    """What the client received on one stream."""

    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict[str, str])
    has_ended: bool = False
    reset: int | None = None

    @property
    def messages(self) -> list[bytes]:
        """The whole messages in the body."""
        found: list[bytes] = []
        rest = bytes(self.body)
        while len(rest) >= 5 and len(rest) - 5 >= (n := int.from_bytes(rest[1:5])):
            found.append(rest[5 : 5 + n])
            rest = rest[5 + n :]
        return found


class Client:
    """One connection.

    Args:
        session: the server's side.
        takes: whether to give the server new window for what is read.
    """

    def __init__(self, session: Session, *, takes: bool = True) -> None:
        self.session, self._takes = session, takes
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration())
        self.connection.initiate_connection()
        self.results: dict[int, CallResult] = {}
        self.goodbyes: list[int] = []
        """Last stream of each GOAWAY."""
        self.errors: list[int] = []
        """Error code of each GOAWAY."""
        self.now = 0.0
        self.may_hold = 1 << 62
        self.pump()

    def open(self, headers: Sequence[tuple[str, str]] = HEADERS, *, ends: bool = False) -> int:
        """Begin a call; returns its stream."""
        stream: int = self.connection.get_next_available_stream_id()
        self.connection.send_headers(stream, list(headers), end_stream=ends)
        self.results[stream] = CallResult()
        return stream

    def pump(self) -> list[Event]:
        """Carry bytes both ways until neither side has any; returns the server's events."""
        seen: list[Event] = []
        while True:
            sent = self.connection.data_to_send()
            if sent or self.session.has_input():
                seen += self.session.receive(sent, self.now, self.may_hold)
            answered = self.session.output(1 << 62)
            self._hear(self.connection.receive_data(answered))
            if not sent and not answered and not self.session.has_input():
                return seen

    def send(self, stream: int, data: bytes, *, ends: bool = False) -> list[Event]:
        """Send data as fast as the server's windows allow; returns the server's events."""
        seen: list[Event] = []
        while data:
            room = min(
                self.connection.local_flow_control_window(stream), self.connection.max_outbound_frame_size
            )
            if not room:
                before = len(seen)
                seen += self.pump()
                if not self.connection.local_flow_control_window(stream) and len(seen) == before:
                    return seen  # the server holds us back
                continue
            self.connection.send_data(stream, data[:room])
            data = data[room:]
            seen += self.pump()
        if ends:
            self.connection.end_stream(stream)
        return seen + self.pump()

    def _hear(self, events: Iterable[h2.events.Event]) -> None:
        for event in events:
            match event:
                case h2.events.ResponseReceived():
                    self.results[event.stream_id].headers = _texts(event.headers)
                case h2.events.DataReceived():
                    self.results[event.stream_id].body += event.data
                    if self._takes:
                        self.connection.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                case h2.events.TrailersReceived():
                    self.results[event.stream_id].trailers = _texts(event.headers)
                case h2.events.StreamEnded():
                    self.results[event.stream_id].has_ended = True
                case h2.events.StreamReset():
                    self.results[event.stream_id].reset = event.error_code
                case h2.events.ConnectionTerminated():
                    self.goodbyes.append(event.last_stream_id or 0)
                    self.errors.append(event.error_code or 0)
                case _:
                    pass


def _texts(headers: Iterable[tuple[bytes, bytes]] | None) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers or ()}
