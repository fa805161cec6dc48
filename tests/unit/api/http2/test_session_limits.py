"""What one connection may make a process do and hold, by its session alone."""

from __future__ import annotations

import contextlib
import itertools
from random import Random

import pytest
from h2.settings import SettingCodes

from hostile.generators.frames import inputs
from kvatlas.api.http2._native import Session
from support.http2 import (
    ALL,
    ENDED,
    GONE,
    MESSAGE,
    OPENED,
    PREFACE,
    UNSENT_LIMIT,
    Client,
    frame,
    framed,
    received,
    session,
)

ENHANCE_YOUR_CALM = 11
MAX_WORK = 128
"""Frames and messages of one call of `receive`."""

LITERAL = b"\x00\x01a\x7e" + b"b" * 126
"""A header field as HPACK writes it without tables."""


def test_connection_ends_when_too_many_streams_are_reset_before_an_answer() -> None:
    client = Client(session(max_early_ends=20))
    for number in range(40):
        client.now = number  # two more may be reset each second
        client.connection.reset_stream(client.open())
        client.pump()
    assert client.errors == []

    for _ in range(20):
        client.connection.reset_stream(client.open())
    client.pump()

    assert client.session.excess() == "resets"
    assert client.errors == [ENHANCE_YOUR_CALM]


def test_connection_ends_when_settings_change_without_end() -> None:
    client = Client(session())
    for number in range(100):
        client.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 70_000 + number})
    client.pump()

    assert client.session.excess() == "settings"
    assert client.errors == [ENHANCE_YOUR_CALM]


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([frame(1, b"", 0, 1), *[frame(9, b"", 0, 1)] * 100], id="empty"),
        pytest.param([frame(1, b"", 0, 1), *[frame(9, LITERAL * 90, 0, 1)] * 10], id="long"),
    ],
)
def test_connection_ends_when_a_header_block_is_endless(frames: list[bytes]) -> None:
    served = session()

    events = received(served, PREFACE + b"".join(frames))

    assert events == []
    assert served.excess() == "header_block"
    assert served.output(ALL).endswith(ENHANCE_YOUR_CALM.to_bytes(4))


def test_work_of_one_call_is_bounded_however_small_the_messages_are() -> None:
    client = Client(session())
    client.open()
    client.open()
    opened = client.connection.data_to_send()
    messages = framed(b"") * 3000
    wire = opened + frame(0, messages, 0, 1) + frame(0, messages, 1, 3) + frame(6, bytes(8), 0, 0) * 3000

    counts = [len(client.session.receive(wire, 0.0, ALL))]
    while client.session.has_input():
        client.session.output(ALL)
        counts.append(len(client.session.receive(b"", 0.0, ALL)))

    assert sum(counts) == 2 + 6000 + 1
    assert max(counts) <= 2 * MAX_WORK
    assert len(counts) >= 9000 / MAX_WORK


def test_paused_call_gets_no_message_and_its_client_no_window() -> None:
    client = Client(session())
    stream, other = client.open(), client.open()
    client.pump()

    client.session.pause(stream)
    events = client.send(stream, framed(b"x" * 1000) * 3000)
    events += client.send(other, framed(b"other"))

    assert events == [(MESSAGE, other, b"other")]
    assert client.connection.local_flow_control_window(stream) == 0
    assert UNSENT_LIMIT * 0.9 < client.session.held() < UNSENT_LIMIT * 1.1

    client.session.resume(stream)
    events = client.pump()
    assert len(events) == UNSENT_LIMIT // 1005
    assert client.connection.local_flow_control_window(stream) > 0
    assert client.session.held() < 1005


def test_end_of_a_paused_call_comes_after_its_messages() -> None:
    client = Client(session())
    stream = client.open()
    client.pump()
    client.session.pause(stream)

    assert client.send(stream, framed(b"one") + framed(b"two"), ends=True) == []
    client.session.resume(stream)

    assert client.pump() == [(MESSAGE, stream, b"one"), (MESSAGE, stream, b"two"), (ENDED, stream)]


def test_partial_messages_are_held_and_refused_when_there_is_no_room() -> None:
    client = Client(session())
    first, second = client.open(), client.open()
    client.pump()
    client.may_hold = 100_000

    assert client.send(first, framed(b"x" * 90_000)[:-1]) == []
    assert client.session.held() == 90_000 - 1
    _, stream, status, _, reason = client.send(second, framed(b"x" * 90_000)[:-1])[0]  # type: ignore[misc]
    assert (stream, status, reason) == (second, 8, "held_bytes")
    assert client.session.held() == 90_000 - 1

    client.connection.reset_stream(first)
    client.pump()
    assert client.session.held() == 0


def test_calls_that_hold_little_find_room_beside_those_that_hold_much() -> None:
    client = Client(session(spare_bytes=2_000_000), takes=False)
    large, small, second = client.open(), client.open(), client.open()
    client.pump()
    client.may_hold = 3_000_000

    assert client.send(large, framed(b"x" * 3_000_000)[:-1]) == []
    assert client.send(small, framed(b"x" * 1000)[:-1]) == []
    assert client.session.held() == 3_000_000 - 1 + 1000 - 1
    assert [client.session.send(small, b"x" * 1000) for _ in range(3)] == [True] * 3
    assert client.send(small, b"x") == [(MESSAGE, small, b"x" * 1000)]

    events = client.send(second, framed(b"x" * 1_500_000)[:-1])
    assert [event[-1] for event in events] == ["held_bytes"]


def test_answers_are_held_and_the_call_is_reset_when_there_is_no_room() -> None:
    client = Client(session(), takes=False)
    stream = client.open()
    client.may_hold = 1 << 20
    client.pump()

    sent = 0
    while client.session.send(stream, b"x" * 100_000):
        sent += 1
        client.pump()
    client.pump()

    assert sent == 10
    assert client.results[stream].reset == ENHANCE_YOUR_CALM
    assert client.session.held() == 0


def test_answer_that_was_sent_is_held_no_more() -> None:
    client = Client(session())
    stream = client.open()
    client.pump()

    client.session.send(stream, b"x" * 1_000_000)
    assert client.session.held() == 1_000_005
    client.pump()

    assert client.results[stream].messages == [b"x" * 1_000_000]
    assert client.session.held() == 0


@pytest.mark.parametrize("seed", range(6))
def test_session_holds_what_its_calls_hold_whatever_is_written(seed: int) -> None:
    rng = Random(seed)
    for wire in itertools.islice(inputs(rng), 20):
        served = session(max_message_bytes=100_000)
        calls = set[int]()
        with contextlib.suppress(ValueError):  # not HTTP/2
            for at in range(0, len(wire), size := rng.choice((100, 5000, 1 << 20))):
                serve(served, calls, wire[at : at + size], rng)
        for stream in calls:
            served.finish(stream, 0, "")
        assert 0 <= served.held() < len(wire) + 3_000_000


def serve(served: Session, calls: set[int], data: bytes, rng: Random) -> None:
    """Give the session bytes, and do with its calls whatever a service may do."""
    events = served.receive(data, rng.random(), rng.choice((0, 50_000, ALL)))
    for event in events:
        stream = event[1]
        if event[0] == OPENED:
            assert stream not in calls
            calls.add(stream)
        assert stream in calls
        if event[0] == GONE:
            calls.remove(stream)
    for stream in rng.sample(sorted(calls), min(3, len(calls))):
        rng.choice(
            (
                lambda stream=stream: served.pause(stream),
                lambda stream=stream: served.resume(stream),
                lambda stream=stream: served.send(stream, bytes(rng.choice((0, 10, 300_000)))),
                lambda stream=stream: served.finish(stream, 13, "odd"),
            )
        )()
    served.output(rng.choice((1, ALL)))
    assert len(events) <= 2 * MAX_WORK
