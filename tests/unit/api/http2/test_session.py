"""The HTTP/2 session, beside a client written by others and without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from h2.exceptions import StreamClosedError
from hypothesis import given
from hypothesis import strategies as st

from support.http2 import (
    ALL,
    BROKEN,
    ENDED,
    GONE,
    HEADERS,
    MESSAGE,
    OPENED,
    PATH,
    PREFACE,
    UNSENT_LIMIT,
    Client,
    framed,
    received,
    session,
)

if TYPE_CHECKING:
    from kvatlas.api.http2._native import Event

MAX_MESSAGE_BYTES = 100_000


def test_call_is_received_and_answered() -> None:
    client = Client(session())
    stream = client.open((*HEADERS, ("grpc-timeout", "3S")))

    events = client.send(stream, framed(b"one") + framed(b""), ends=True)
    client.session.send(stream, b"two")
    client.session.send(stream, b"")
    client.session.finish(stream, 0, "")
    client.pump()

    assert events == [
        (OPENED, stream, PATH, "application/grpc", "3S"),
        (MESSAGE, stream, b"one"),
        (MESSAGE, stream, b""),
        (ENDED, stream),
    ]
    answer = client.results[stream]
    assert answer.headers[":status"] == "200"
    assert answer.headers["content-type"] == "application/grpc"
    assert answer.messages == [b"two", b""]
    assert answer.trailers == {"grpc-status": "0"}
    assert answer.has_ended


def test_status_alone_is_one_block_of_headers_when_nothing_was_sent() -> None:
    client = Client(session())
    stream = client.open(ends=True)
    client.pump()

    client.session.finish(stream, 5, "näh: 100 % gone\n")
    client.pump()

    answer = client.results[stream]
    assert answer.headers["grpc-status"] == "5"
    assert answer.headers["grpc-message"] == "n%C3%A4h: 100 %25 gone%0A"
    assert answer.has_ended
    assert not answer.body


def test_client_that_keeps_sending_is_reset_when_the_call_is_finished() -> None:
    client = Client(session())
    stream = client.open()
    client.send(stream, framed(b"one"))

    client.session.finish(stream, 3, "enough")
    assert client.pump() == []
    assert client.results[stream].headers["grpc-status"] == "3"
    assert client.results[stream].reset is None  # a client may take that for a failure of the call
    client.session.send(stream, b"late")
    client.session.finish(stream, 0, "late")
    assert client.session.output(ALL) == b""

    with pytest.raises(StreamClosedError):
        client.send(stream, bytes(17 << 20))
    assert client.results[stream].reset == 0


@pytest.mark.parametrize(
    ("data", "ends", "status", "text"),
    [
        pytest.param(framed(b"x", compressed=True), False, 12, "compressed", id="compressed"),
        pytest.param(framed(b"x" * (MAX_MESSAGE_BYTES + 1)), False, 8, "100001 bytes", id="too_long"),
        pytest.param(b"\0\xff\xff\xff\xff", False, 8, "4294967295 bytes", id="too_long_by_its_prefix"),
        pytest.param(framed(b"whole") + framed(b"half")[:-1], True, 13, "within a message", id="cut_off"),
        pytest.param(b"\0\0", True, 13, "within a message", id="cut_off_in_the_prefix"),
    ],
)
def test_messages_are_refused_once_when_they_break_the_rules(
    data: bytes, ends: bool, status: int, text: str
) -> None:
    client = Client(session(max_message_bytes=MAX_MESSAGE_BYTES))
    stream = client.open()

    events = client.send(stream, data, ends=ends)
    events += client.send(stream, b"more of it", ends=True) if not ends else []

    broken = [event for event in events if event[0] == BROKEN]
    assert len(broken) == 1
    _, _, code, why, _reason = broken[0]  # type: ignore[misc]
    assert code == status
    assert text in why
    assert (ENDED, stream) not in events


def test_other_calls_go_on_when_one_is_given_up() -> None:
    client = Client(session())
    first, second = client.open(), client.open()
    client.pump()

    client.connection.reset_stream(first)
    events = client.pump() + client.send(second, framed(b"still here"), ends=True)

    assert events == [(GONE, first), (MESSAGE, second, b"still here"), (ENDED, second)]


def test_connection_lives_when_a_gateway_resets_thousands_of_answered_streams() -> None:
    client = Client(session(max_early_ends=10))
    for _ in range(3000):  # Envoy resets every stream that it is done with
        stream = client.open()
        assert client.pump() == [(OPENED, stream, PATH, "application/grpc", "")]
        client.session.send(stream, b"answer")
        client.pump()
        client.connection.reset_stream(stream)
        assert client.pump() == [(GONE, stream)]

    assert client.goodbyes == []
    last = client.open()
    assert client.send(last, framed(b"on"), ends=True)[-1] == (ENDED, last)


def test_client_amid_a_long_message_is_not_cut_short_when_the_message_is_refused() -> None:
    client = Client(session(max_message_bytes=10))
    stream = client.open()
    message = framed(b"x" * 100)
    _, broken = client.send(stream, message[:50])
    assert broken[0] == BROKEN
    client.session.finish(stream, 8, "too long")

    assert client.send(stream, message[50:], ends=True) == []
    assert client.results[stream].reset is None
    assert client.results[stream].headers["grpc-status"] == "8"


def test_call_is_reset_when_its_headers_are_endless() -> None:
    client = Client(session())
    stream = client.open((*HEADERS, *((f"x-{i}", "y" * 7000) for i in range(12))))

    assert client.pump() == []
    assert client.results[stream].reset is not None


def test_no_more_calls_are_opened_than_allowed() -> None:
    client = Client(session(max_streams=2))

    assert client.connection.remote_settings.max_concurrent_streams == 2


def test_client_that_reads_nothing_is_not_read_when_much_waits_for_it() -> None:
    client = Client(session(), takes=False)
    stream = client.open()
    client.pump()
    client.session.send(stream, b"x" * (2 * UNSENT_LIMIT))
    client.pump()
    assert client.session.unsent(stream) > UNSENT_LIMIT

    events = client.send(stream, framed(b"y" * (3 << 20)))

    assert not [event for event in events if event[0] == MESSAGE]
    assert client.connection.local_flow_control_window(stream) == 0

    client.connection.increment_flow_control_window(4 << 20)
    client.connection.increment_flow_control_window(4 << 20, stream)
    client.pump()
    assert client.session.unsent(stream) == 0
    assert client.connection.local_flow_control_window(stream) > 0


def test_connection_is_over_after_its_calls_when_it_takes_no_new_ones() -> None:
    client = Client(session())
    stream = client.open()
    client.pump()

    client.session.announce_end()
    client.session.refuse_new()
    client.pump()  # the client's library takes part in nothing any more once it has events that

    assert client.goodbyes == [2**31 - 1, stream]
    assert not client.session.is_over()
    client.session.finish(stream, 0, "")
    client.session.output(ALL)
    assert client.session.is_over()


def test_answer_to_a_ping_is_counted() -> None:
    client = Client(session())

    client.session.ping()
    client.pump()

    assert client.session.n_pongs() == 1


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 30, b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n"]
)
def test_peer_is_refused_when_it_speaks_no_http2(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        session().receive(data, 0.0, ALL)


def test_numbers_are_refused_when_no_stream_can_have_them() -> None:
    for number in (0, -1, 2**31):
        with pytest.raises(ValueError, match=r"stream|must be"):
            session().send(number, b"")
    with pytest.raises(TypeError):
        session().send(1, "text")  # type: ignore[arg-type]


def test_end_is_told_once_when_the_call_is_paused_and_resumed_after_it() -> None:
    client = Client(session())
    stream = client.open(HEADERS)
    events = client.send(stream, framed(b"one"), ends=True)

    for _ in range(2):
        client.session.pause(stream)
        client.session.resume(stream)
        events += received(client.session, b"")

    assert events[1:] == [(MESSAGE, stream, b"one"), (ENDED, stream)]


def recorded(messages: list[bytes]) -> bytes:
    """Return the bytes of two calls of a client, one after the other."""
    client = Client(session())
    wire = bytearray()
    for _ in range(2):
        stream = client.connection.get_next_available_stream_id()
        client.connection.send_headers(stream, list(HEADERS))
        for message in messages:
            client.connection.send_data(stream, framed(message))
        client.connection.end_stream(stream)
        wire += client.connection.data_to_send()
    return bytes(wire)


MESSAGES = st.lists(st.binary(max_size=300), max_size=4)


@given(MESSAGES, st.lists(st.integers(1, 60), max_size=30))
def test_events_are_the_same_however_bytes_are_split(messages: list[bytes], sizes: list[int]) -> None:
    wire = PREFACE + recorded(messages)
    whole = received(session(), wire)

    parted = session()
    events: list[Event] = []
    for size in [*sizes, len(wire)]:
        events += received(parted, wire[:size])
        wire = wire[size:]

    assert events == whole
    assert [event[2] for event in whole if event[0] == MESSAGE] == messages * 2  # type: ignore[misc]


@given(MESSAGES, st.data())
def test_nothing_breaks_when_bytes_are_changed(messages: list[bytes], data: st.DataObject) -> None:
    wire = bytearray(PREFACE + recorded(messages))
    for _ in range(data.draw(st.integers(1, 5))):
        wire[data.draw(st.integers(len(PREFACE), len(wire) - 1))] = data.draw(st.integers(0, 255))

    served = session(max_message_bytes=1000)
    try:
        events = received(served, bytes(wire))
    except ValueError:
        events = []
    for event in events:
        served.send(event[1], b"answer")
        served.finish(event[1], 0, "")
    served.output(ALL)

    opened = [event[1] for event in events if event[0] == OPENED]
    assert len(opened) == len(set(opened))
    assert {event[1] for event in events} <= set(opened)
