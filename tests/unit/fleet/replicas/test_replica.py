"""Messages between replicas: which are refused, how gaps heal, and what hostile siblings can hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.fleet.replicas.channel import MAX_MESSAGE_BYTES, MalformedError
from kvatlas.fleet.replicas.entries import Entries
from kvatlas.fleet.replicas.envelope import Codec, Kind, sender_of
from kvatlas.fleet.replicas.identity import Identity
from kvatlas.fleet.replicas.inbound import MAX_HELD
from kvatlas.fleet.replicas.replica import MAX_SIBLINGS, Outgoing, Replica
from kvatlas.fleet.replicas.sibling import MAX_BYTES_PER_S, MAX_HELD_BYTES, SiblingState
from support.replica_network import MS, make_identity

S = 1000 * MS


class Book:
    """A replica with one channel of numbers, and what came of it."""

    def __init__(self, identity: Identity | None = None) -> None:
        self.seen: dict[str, int | None] = {}
        self.channel = Entries(int, self._took, max_entries=100)
        self.replica = Replica(identity or make_identity(), {"numbers": self.channel})

    def _took(self, _: str, key: str, before: int | None, after: int | None) -> None:  # noqa: ARG002
        self.seen[key] = after

    def hears(self, messages: Sequence[Outgoing], now_ns: int) -> list[Outgoing]:
        """Receive messages, and return the replies."""
        return list(itertools.chain(*(self.replica.receive(each.payload, now_ns) for each in messages)))


def acquainted() -> tuple[Book, Book]:
    """Return two replicas that know each other whole."""
    one, other = Book(make_identity("one")), Book(make_identity("other"))
    for sender, receiver in ((one, other), (other, one)):
        messages = list(sender.replica.tick(0))
        while messages:  # each message, then the replies to it
            messages = receiver.hears(messages, 0)
            sender, receiver = receiver, sender  # noqa: PLW2901
    assert {each.state for book in (one, other) for each in book.replica.siblings()} == {SiblingState.LIVE}
    return one, other


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(Codec(make_identity("b", pool="else")).encode(Kind.LEAVE), "pool", id="pool"),
        pytest.param(Codec(make_identity("b", keys="seed 1")).encode(Kind.LEAVE), "keys", id="seed"),
        pytest.param(
            Codec(Identity("b", 1, "pool", "seed 0", protocol=2)).encode(Kind.LEAVE),
            "version",
            id="version",
        ),
        pytest.param(Codec(make_identity("a", boot=9)).encode(Kind.LEAVE), "same_name", id="own_name"),
        pytest.param(b"", "malformed", id="empty"),
        pytest.param(b"GET / HTTP/1.1\r\n", "malformed", id="other_protocol"),
        pytest.param(Codec(make_identity("b")).encode(Kind.LEAVE)[:40], "malformed", id="cut"),
        pytest.param(Codec(make_identity("b")).encode(Kind.WHOLE, part=3, parts=3), "malformed", id="part"),
        pytest.param(b"x" * (MAX_MESSAGE_BYTES + 1), "too_long", id="too_long"),
    ],
)
def test_message_is_refused_by_name(message: bytes, reason: str) -> None:
    book = Book()
    book.replica.tick(0)

    assert book.replica.receive(message, 0) == []
    assert book.replica.counters.refused == {reason: 1}
    (shown,) = book.replica.siblings()
    assert shown.state is SiblingState.REFUSED
    assert shown.reason


def test_refusal_is_logged_once_for_each_sender_and_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    book.replica.tick(0)
    messages = [Codec(make_identity(f"b{n}", keys="seed 7")).encode(Kind.LEAVE) for n in range(100)]
    for message in messages[:1] * 3:
        book.replica.receive(message, 0)
    (logged,) = (each.message for each in caplog.records)
    assert logged == (
        "replicas: messages are refused: b0 computes other block keys: its hash seed is not this replica's; "
        "this is not logged again"
    )
    for message in messages:
        book.replica.receive(message, 0)
    assert len(caplog.records) == 64


def test_refused_sender_is_shown_until_it_has_been_silent_for_ten_minutes() -> None:
    book = Book()
    book.replica.receive(Codec(make_identity("b", keys="seed 7")).encode(Kind.LEAVE), 0)
    shown: list[int] = []
    for minute in (0, 9, 11):
        book.replica.tick(minute * 60 * S)
        shown.append(len(book.replica.siblings()))

    assert shown == [1, 1, 0]


def test_own_messages_are_ignored_when_a_transport_returns_them() -> None:
    book = Book()
    messages = book.replica.tick(0)

    assert book.hears(messages, 0) == []
    assert book.replica.siblings() == []
    assert not book.replica.counters.refused


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_bytes_of_anybody_never_raise(junk: bytes, payload: bytes) -> None:
    book = Book()
    book.replica.receive(junk, 0)
    book.replica.receive(b"KVR" + junk, 0)
    for kind in Kind:
        message = Codec(make_identity("b")).encode(kind, payload, channel="numbers", seq=1)
        book.replica.receive(message, 0)
        book.replica.receive(message[:-1], 0)
    book.replica.tick(S)


def test_heartbeat_that_nests_deeply_is_counted() -> None:
    book, payload = Book(), b"\x93\xa1v\x80" + b"\x91" * 5000 + b"\xc0"

    book.replica.receive(Codec(make_identity("b")).encode(Kind.HEARTBEAT, payload), 0)

    assert book.replica.counters.malformed == {"heartbeat": 1}


def test_lost_message_is_healed_by_the_whole_when_a_heartbeat_tells_of_it() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    one.replica.tick(5 * MS)  # lost
    assert other.seen == {}

    asked = other.hears(one.replica.tick(205 * MS), 205 * MS)
    assert [each.to for each in asked] == [one.replica.identity.id]
    other.hears(one.hears(asked, 1500 * MS), 1500 * MS)

    assert other.seen == {"x": 1}
    assert [each.state for each in other.replica.siblings()] == [SiblingState.LIVE]


def test_change_after_a_gap_counts_at_once() -> None:
    one, other = acquainted()
    one.channel.put("lost", 1)
    one.replica.tick(5 * MS)
    one.channel.put("x", 2)
    other.hears(one.replica.tick(10 * MS), 10 * MS)

    assert other.seen == {"x": 2}
    assert [each.n_missing for each in other.replica.siblings()] == [1]


def test_late_change_does_not_undo_a_newer_one() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    late = one.replica.tick(5 * MS)
    one.channel.put("x", 2)
    other.hears(one.replica.tick(10 * MS), 10 * MS)

    other.hears(late, 15 * MS)

    assert other.seen == {"x": 2}


def test_whole_is_sent_at_most_once_a_second_to_one_asker() -> None:
    one, other = acquainted()
    ask = Codec(other.replica.identity).encode(
        Kind.ASK, msgspec.msgpack.encode(["numbers"]), to=one.replica.identity.id
    )

    replies = [len(one.replica.receive(ask, now)) for now in (1100 * MS, 1200 * MS, 2000 * MS, 2100 * MS)]

    assert replies == [1, 0, 0, 1]


def test_sibling_that_is_silent_is_dropped_and_comes_back_whole() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    other.hears(one.replica.tick(5 * MS), 5 * MS)
    for ms in range(200, 1400, 200):
        other.replica.tick(ms * MS)
    assert other.seen == {"x": None}
    assert [each.state for each in other.replica.siblings()] == [SiblingState.SILENT]

    asked = other.hears(one.replica.tick(1500 * MS), 1500 * MS)
    other.hears(one.hears(asked, 1500 * MS), 1500 * MS)

    assert other.seen == {"x": 1}


def test_change_reaches_a_sibling_that_its_owner_did_not_hear_meanwhile() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    other.hears(one.replica.tick(5 * MS), 5 * MS)
    for ms in range(200, 1400, 200):  # what the other sends is lost
        other.hears(one.replica.tick(ms * MS), ms * MS)
        other.replica.tick(ms * MS)
    assert [each.state for each in one.replica.siblings()] == [SiblingState.SILENT]

    one.channel.put("x", None)
    asked = other.hears(one.replica.tick(1500 * MS), 1500 * MS)
    other.hears(one.hears(asked, 1500 * MS), 1500 * MS)

    assert other.seen == {"x": None}


def test_replica_that_stood_still_drops_nobody_for_it() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    other.hears(one.replica.tick(5 * MS), 5 * MS)

    other.replica.tick(60 * S)

    assert other.seen == {"x": 1}


def test_sibling_that_died_while_a_replica_stood_still_is_dropped_once_it_is_silent() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    last_words = one.replica.tick(5 * MS)

    other.hears(last_words, 60 * S)  # they waited in the socket, and are read before the first tick
    for ms in range(0, 1400, 200):
        other.replica.tick(60 * S + ms * MS)

    assert other.seen == {"x": None}
    assert other.replica.live == []


def test_another_version_of_kvatlas_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    book = Book(make_identity("one"))
    for name in ("two", "three"):
        sibling = Book(replace(make_identity(name), version="0.0.1"))
        book.hears([*sibling.replica.tick(0), *sibling.replica.tick(S)], S)

    (said,) = caplog.messages
    assert said.startswith("replicas: two runs kvatlas 0.0.1, and this one ")


def test_sibling_that_goes_is_dropped_at_once() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    other.hears(one.replica.tick(5 * MS), 5 * MS)

    other.hears(one.replica.leave(), 10 * MS)

    assert other.seen == {"x": None}


def test_leave_that_comes_by_two_transports_counts_once() -> None:
    one, other = acquainted()
    leave = one.replica.leave()

    replies = other.hears([*leave, *leave], 10 * MS)

    assert (replies, other.replica.live, other.replica.counters.silenced) == ([], [], 1)


def test_new_life_takes_the_place_of_the_old_one() -> None:
    one, other = acquainted()
    one.channel.put("x", 1)
    old = one.replica.tick(5 * MS)
    other.hears(old, 5 * MS)
    again = Book(make_identity("one", boot=2))

    other.hears(again.replica.tick(10 * MS), 10 * MS)
    other.hears(old, 15 * MS)

    assert other.seen == {"x": None}
    assert other.replica.counters.refused == {"old_life": len(old)}


def test_siblings_are_bounded_and_silent_ones_make_room() -> None:
    book = Book()
    book.replica.tick(0)
    names = [f"s{number}" for number in range(MAX_SIBLINGS + 1)]
    for name in names:
        book.replica.receive(Codec(make_identity(name)).encode(Kind.LETTER), 0)
    assert len(book.replica.live) == MAX_SIBLINGS
    assert book.replica.counters.refused == {"too_many": 1}

    book.replica.receive(Codec(make_identity(names[0])).encode(Kind.LEAVE), 0)
    book.replica.receive(Codec(make_identity(names[-1])).encode(Kind.LETTER), 0)

    assert book.replica.live[-1].startswith(names[-1])


def test_hostile_sibling_holds_a_bounded_number_of_bytes() -> None:
    book, codec, payload = Book(), Codec(make_identity("b")), bytes(MAX_MESSAGE_BYTES - 500)
    held: list[int] = []
    for second in range(3):
        for number in range(MAX_BYTES_PER_S // len(payload) + 5):
            delta = codec.encode(Kind.DELTA, payload, channel="numbers", seq=2 + 2 * number)
            whole = codec.encode(
                Kind.WHOLE, payload, channel="numbers", seq=10_000, part=number, parts=60_000
            )
            for message in (delta, whole):
                book.replica.receive(message, second * S)
            held += (each.n_held_bytes for each in book.replica.siblings())

    assert max(held) <= MAX_HELD_BYTES
    assert book.replica.counters.refused["too_fast"]
    assert MAX_HELD * 64 < MAX_HELD_BYTES


def test_gap_that_closes_late_takes_no_newer_value_back() -> None:
    one, other = acquainted()
    sent: list[Outgoing] = []
    for number in range(2 * MAX_HELD):
        one.channel.put("x", number)
        sent += one.replica.tick(MS)
    deltas = [each for each in sent if Codec(make_identity()).decode(each.payload).kind is Kind.DELTA]  # type: ignore[union-attr]
    late, *others = deltas

    other.hears(others, MS)
    assert other.seen == {"x": 2 * MAX_HELD - 1}
    other.hears([late], MS)

    assert other.seen == {"x": 2 * MAX_HELD - 1}


def test_letter_reaches_its_receiver_alone_and_is_answered() -> None:
    class Echo:
        def received(self, sender: str, payload: bytes, now_ns: int) -> Sequence[tuple[str, bytes]]:  # noqa: ARG002
            if payload == b"bad":
                raise MalformedError("bad")
            return [(sender, payload + b"!")] if not payload.endswith(b"!") else []

    one = Replica(make_identity("one"), {}, letters={"echo": Echo()})
    other = Replica(make_identity("other"), {}, letters={"echo": Echo()})
    third = Replica(make_identity("third"), {}, letters={"echo": Echo()})

    (letter,) = one.letter("echo", other.identity.id, b"hello")

    assert sender_of(letter.payload) == one.identity.id
    assert third.receive(letter.payload, 0) == []
    (reply,) = other.receive(letter.payload, 0)
    assert reply.to == one.identity.id
    assert reply.payload.endswith(b"hello!")
    (bad,) = one.letter("echo", other.identity.id, b"bad")
    assert other.receive(bad.payload, 0) == []
    assert other.counters.malformed == {"echo": 1}


def test_channel_that_a_sibling_does_not_have_is_not_waited_for() -> None:
    one = Replica(make_identity("one"), {})
    other = Book(make_identity("other"))
    other.hears(one.tick(0), 0)

    assert [each.state for each in other.replica.siblings()] == [SiblingState.LIVE]
