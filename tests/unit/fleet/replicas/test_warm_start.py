"""A replica that starts takes the snapshot of a sibling, whatever becomes of letters and siblings."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.fleet.replicas.channel import MalformedError
from kvatlas.fleet.replicas.warm_giver import BURST_BYTES, BYTES_PER_S, WINDOW_BYTES, Giver
from kvatlas.fleet.replicas.warm_letters import PIECE_BYTES, Ask, Piece, Stage, decoded, encoded
from kvatlas.fleet.replicas.warm_start import WarmStart
from kvatlas.fleet.replicas.warm_taker import LOOK_NS, Taker
from support.warm import Nursery

SNAPSHOT = [bytes([each]) * (PIECE_BYTES + 7 * each) for each in range(12)]


def whole(taker: Taker) -> bytes:
    assert taker.taken is not None, taker.why
    return b"".join(taker.taken[1])


def giver_of(taker: Taker) -> str:
    return taker.taken[0] if taker.taken is not None else ""


def test_snapshot_comes_whole_from_a_sibling_that_is_ready() -> None:
    nursery = Nursery()
    giver = nursery.ready("a", SNAPSHOT)
    taker = nursery.starting("b")
    nursery.run(lambda: taker.is_done)
    assert whole(taker) == b"".join(SNAPSHOT)
    nursery.step()
    assert (giver.warm.giver.n_given, giver.warm.giver.taker) == (1, None)


@given(seed=st.integers(0, 2**32), percent=st.integers(1, 40))
def test_snapshot_comes_whole_when_letters_are_lost(seed: int, percent: int) -> None:
    rng = random.Random(seed)
    nursery = Nursery(loses=lambda _: rng.random() * 100 < percent)
    nursery.ready("a", SNAPSHOT[:5])
    taker = nursery.starting("b")
    nursery.run(lambda: taker.is_done)
    assert taker.taken is None or whole(taker) == b"".join(SNAPSHOT[:5])
    assert taker.taken is not None or taker.why


def test_another_sibling_is_asked_when_the_first_one_dies() -> None:
    nursery = Nursery()
    for name in ("a", "b"):
        nursery.ready(name, SNAPSHOT)
    taker = nursery.starting("c")
    nursery.run(lambda: any(each.warm.giver.taker for each in nursery.replicas.values()))
    nursery.step()
    (dying,) = (each for each in nursery.replicas.values() if each.warm.giver.taker)
    dying.is_alive = False
    nursery.run(lambda: taker.is_done)
    assert whole(taker) == b"".join(SNAPSHOT)


def test_another_sibling_is_asked_when_a_snapshot_cannot_be_used() -> None:
    nursery = Nursery()
    nursery.ready("a", SNAPSHOT[:1])
    nursery.ready("b", SNAPSHOT[:1])
    taker = nursery.starting("c")
    nursery.run(lambda: taker.is_done)
    first = giver_of(taker)
    taker.refuse("its checksum is wrong")
    nursery.run(lambda: taker.is_done)
    assert {first, giver_of(taker)} == {"a", "b"}
    taker.refuse("its checksum is wrong")
    nursery.run(lambda: taker.is_done)
    assert giver_of(taker) == ""
    assert taker.why.count("its checksum is wrong") == 2


def test_replica_without_siblings_starts_by_itself_soon() -> None:
    nursery = Nursery()
    taker = nursery.starting("a")
    nursery.run(lambda: taker.is_done)
    assert taker.taken is None
    assert nursery.now_ns < 2 * LOOK_NS


def test_takers_have_their_turns_one_after_the_other() -> None:
    nursery = Nursery()
    giver = nursery.ready("a", SNAPSHOT)
    takers = [nursery.starting(name) for name in "bcd"]
    nursery.run(lambda: all(each.is_done for each in takers))
    assert [whole(each) for each in takers] == [b"".join(SNAPSHOT)] * 3
    assert giver.n_begun == 3


def test_of_replicas_that_start_together_one_fetches_the_history_and_gives_it_to_the_others() -> None:
    nursery = Nursery()
    takers = {name: nursery.starting(name) for name in ("c", "a", "b")}
    nursery.run(lambda: any(each.is_done for each in takers.values()))
    (first,) = (name for name, each in takers.items() if each.is_done)
    assert first == "a"
    filling = nursery.replicas["a"]
    filling.warm.giver.stage = Stage.FILLING
    for _ in range(100):
        nursery.step()
    assert not takers["b"].is_done
    filling.pieces, filling.warm.giver.stage = SNAPSHOT, Stage.READY
    nursery.run(lambda: all(each.is_done for each in takers.values()))
    assert whole(takers["b"]) == whole(takers["c"]) == b"".join(SNAPSHOT)


def test_replica_starts_by_itself_when_its_siblings_never_get_ready() -> None:
    nursery = Nursery()
    nursery.ready("a", []).warm.giver.stage = Stage.FILLING
    taker = nursery.starting("b")
    nursery.run(lambda: taker.is_done, limit_s=12)
    assert "ready" in taker.why


def test_giver_keeps_no_more_than_its_window_for_a_taker_that_confirms_nothing() -> None:
    giver = Giver()
    giver.stage = Stage.READY
    giver.received("b", Ask(1), 0)
    n_bytes = 0
    while giver.has_room:
        n_bytes += sum(len(payload) for _, payload in giver.push(b"x" * PIECE_BYTES, 0))
    assert n_bytes <= WINDOW_BYTES + 8 * 64
    assert [to for to, _ in giver.tick(3_000_000_000)] == ["b"]
    assert giver.taker is None
    assert giver.n_broken == 1


def test_giver_sends_in_no_second_more_than_siblings_take() -> None:
    nursery = Nursery()
    nursery.ready("a", [bytes(PIECE_BYTES)] * 200)
    taker = nursery.starting("b")
    nursery.run(lambda: taker.is_done)
    assert nursery.now_ns >= (200 * PIECE_BYTES - BURST_BYTES) * 10**9 // BYTES_PER_S


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["d", 1, -1, b"x"]),
        msgspec.msgpack.encode(["d", 1, 0, b""]),
        msgspec.msgpack.encode(["q"]),
        b"\x91" * 10_000,
    ],
)
def test_bytes_that_are_no_letter_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedError, match="a letter of a"):
        WarmStart().received("a", payload, 0)


def test_pieces_that_nobody_asked_for_are_dropped() -> None:
    nursery = Nursery()
    taker = nursery.starting("b")
    nursery.ready("a", [])
    letter = decoded(encoded(Piece(7, 0, b"x")), "a")
    assert isinstance(letter, Piece)
    assert taker.received("a", letter, 0) == []
    assert taker.taken is None
