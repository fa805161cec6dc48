"""Picks of the same endpoint count as concurrent exactly if neither replica knew the other's."""

from __future__ import annotations

import msgspec
import pytest

from kvatlas.fleet.replicas.channel import MalformedError
from kvatlas.fleet.replicas.picks import MAX_ENDPOINTS, PICKS_PER_PAYLOAD, Picks


def tell(source: Picks, owner: str, *targets: Picks) -> None:
    for payload in source.drain():
        for target in targets:
            target.apply(owner, payload)


def met() -> tuple[Picks, Picks]:
    """Return two replicas that have heard each other once."""
    a, b = Picks("a"), Picks("b")
    for name, one, other in (("a", a, b), ("b", b, a), ("a", a, b)):
        one.made("first")
        tell(one, name, other)
    return a, b


def counts(*picks: Picks) -> list[int]:
    return [each.n_concurrent for each in picks]


def test_picks_are_not_concurrent_when_each_knows_those_before() -> None:
    a, b = met()
    for _ in range(5):
        a.made("e")
        tell(a, "a", b)
        b.made("e")
        tell(b, "b", a)
    assert counts(a, b) == [0, 0]
    assert (a.n_heard, b.n_heard) == (6, 7)


def test_picks_of_one_endpoint_are_concurrent_when_their_messages_cross() -> None:
    a, b = met()
    a.made("e")
    a.made("f")
    b.made("e")
    b.made("g")
    tell(a, "a", b)
    tell(b, "b", a)
    assert counts(a, b) == [1, 1]


def test_pick_that_knew_one_of_two_is_concurrent_with_the_other_alone() -> None:
    a, b = met()
    b.made("e")
    tell(b, "b", a)
    a.made("e")
    b.made("e")  # knows its own first one, not that of `a`
    tell(a, "a", b)
    tell(b, "b", a)
    assert counts(a, b) == [1, 1]


def test_picks_made_before_and_after_a_message_are_told_apart() -> None:
    a, b = met()
    a.made("e")
    b.made("e")
    tell(b, "b", a)
    a.made("e")  # in the same payload, but it knew that of `b`
    tell(a, "a", b)
    assert counts(a, b) == [1, 1]


def test_three_replicas_count_each_pair() -> None:
    names = "abc"
    picks = {name: Picks(name) for name in names}
    for _ in range(2):
        for name in names:
            picks[name].made("first")
            tell(picks[name], name, *(picks[other] for other in names if other != name))
    for name in names:
        picks[name].made("e")
    for name in names:
        tell(picks[name], name, *(picks[other] for other in names if other != name))
    assert counts(*picks.values()) == [2, 2, 2]


def test_lost_and_repeated_payloads_do_not_count() -> None:
    a, b = met()
    b.made("e")
    tell(b, "b", a)
    a.made("x")
    (lost,) = a.drain()  # says that the pick of `e` was heard
    a.made("e")
    (late,) = a.drain()
    b.apply("a", late)
    b.apply("a", late)
    b.apply("a", lost)
    assert (counts(b), b.n_heard) == ([0], 3)


def test_replica_without_a_name_or_one_that_is_dropped_counts_nothing() -> None:
    a, b = met()
    b.drop("a")
    b.made("e")
    a.made("e")
    tell(a, "a", b)
    nameless = Picks("")
    nameless.made("e")
    tell(b, "b", nameless)
    assert counts(b, nameless) == [0, 0]


def test_many_picks_and_endpoints_stay_bounded() -> None:
    a, b = Picks("a"), Picks("b")
    for number in range(MAX_ENDPOINTS + 5):
        a.made(f"e{number}")
    tell(a, "a", b)
    assert b.n_heard == PICKS_PER_PAYLOAD


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode([-1, []]), msgspec.msgpack.encode([1, [[{"a": 1}, []]]])]
)
def test_payload_that_cannot_be_read_changes_nothing(payload: bytes) -> None:
    picks = Picks("a")
    with pytest.raises(MalformedError):
        picks.apply("b", payload)
    assert picks.n_heard == 0
