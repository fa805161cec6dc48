"""What replicas share of requests, prompts, sessions, costs and the audit, and what stays of a replica that is gone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from kvatlas.fleet.audit import Audit, Audited, Verdict
from kvatlas.fleet.in_flight import InFlight
from kvatlas.fleet.predictions import Predictions
from kvatlas.fleet.replicas import routes
from kvatlas.fleet.replicas.bookings import Bookings
from kvatlas.fleet.replicas.channel import MAX_PAYLOAD_BYTES, Channel, MalformedError
from kvatlas.fleet.replicas.knowledge import Knowledge
from kvatlas.fleet.replicas.picks import Picks
from kvatlas.fleet.replicas.routes import Changes, Routes, Sent
from kvatlas.fleet.replicas.sums import Sums
from kvatlas.fleet.replicas.uses import Uses
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.holders import FASTEST
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.scorers.core.candidates import Directory
from kvatlas.scorers.core.model import IDLE, Candidate, InFlightLoad
from kvatlas.scorers.core.shared import Contribution, Shared, SharedSums, SharedUses

SIZE = 16


def tell(source: Channel, target: Channel, owner: str = "a") -> None:
    for payload in source.drain():
        target.apply(owner, payload)


# -- bookings ---------------------------------------------------------------------------------------------------------


def test_bookings_of_siblings_count_until_they_end_or_their_owner_is_gone() -> None:
    one, other = Bookings(), Bookings()
    shown: dict[str, InFlightLoad] = {}
    accounts = InFlight(one)
    others = InFlight(other, on_change=shown.__setitem__)
    first, second = accounts.book("e", tokens=10, now=0.0), accounts.book("e", tokens=7, now=0.0)
    others.book("e", tokens=1, now=0.0)

    tell(one.channel, other.channel)
    assert others.of("e") == shown["e"] == InFlightLoad(3, 18)
    first.begun()
    tell(one.channel, other.channel)
    assert others.of("e") == InFlightLoad(3, 8)
    first.ended()
    second.ended()
    tell(one.channel, other.channel)
    assert others.of("e") == InFlightLoad(1, 1)

    accounts.book("e", tokens=5, now=0.0)
    tell(one.channel, other.channel)
    other.channel.drop("a")
    assert others.of("e") == shown["e"] == InFlightLoad(1, 1)


def test_bookings_of_a_newer_kvatlas_count_by_the_numbers_that_are_known() -> None:
    bookings = Bookings()
    bookings.channel.apply("a", msgspec.msgpack.encode({"e": [2, 30, 400]}))
    assert bookings.of("e") == InFlightLoad(2, 30)
    bookings.channel.apply("a", msgspec.msgpack.encode({"e": [1]}))
    assert bookings.of("e") == InFlightLoad(1, 0)
    bookings.channel.apply("a", msgspec.msgpack.encode({"e": None}))
    assert bookings.of("e") == IDLE


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode({"e": [-1, 0]}), b"\x91" * 5000])
def test_bookings_that_cannot_be_read_change_nothing(payload: bytes) -> None:
    bookings = Bookings()
    with pytest.raises(MalformedError):
        bookings.channel.apply("a", payload)
    assert bookings.of("e") == IDLE


# -- routes -----------------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """The index of one replica, with endpoints `events` and `learns`."""

    now: float = 0.0

    def __post_init__(self) -> None:
        self.atlas = Atlas(tiers=TierTable([TierSpec(name="gpu", media=("GPU",))]), seed=0, core=index_core())
        self.predictions = Predictions(self.atlas, ttl_s=2.0)
        for name in ("events", "learns"):
            self.atlas.add(name)
            (ledger,) = self.atlas.ledgers(name)
            if name == "learns":
                ledger.without_events()
            ledger.use_block_size(SIZE)
        self.routes = Routes(self.atlas, self.predictions, lambda: self.now)

    def blocks(self, endpoint: str, prefix: Prefix) -> int:
        """Return the leading blocks that the endpoint holds or will hold."""
        directory = Directory(("events", "learns"), ("events", "learns"), ({}, {}))
        columns = self.predictions.matches(prefix, directory, now=self.now)
        assert columns is not None
        row = directory.row(endpoint)
        assert row is not None
        (match,) = columns.matches([row])
        return match.held.tier_blocks[0]

    def send(self, endpoint: str, prefix: Prefix) -> object:
        """Send a prompt to an endpoint; return its prediction."""
        match = self.atlas.match(prefix)[endpoint]
        candidate = Candidate(name=endpoint, address=endpoint, labels={}, load=None, prefix=match)
        self.atlas.routed(endpoint, prefix, match)
        return self.predictions.routed(candidate, prefix, now=self.now)


def prompt(seed: int = 0, n_blocks: int = 5) -> Prefix:
    return Prefix(array("I", range(seed, seed + n_blocks * SIZE + 1)))


def test_prediction_of_a_sibling_counts_until_it_expires_after_the_begin() -> None:
    one, other = Place(), Place(now=1000.0)
    prediction = one.send("events", prompt())
    tell(one.routes, other.routes)
    assert other.blocks("events", prompt()) == 5

    other.now += 30  # the request waits in the engine's queue
    assert other.blocks("events", prompt()) == 5
    one.predictions.begun(prediction)  # type: ignore[arg-type]
    tell(one.routes, other.routes)
    other.now += 2.5
    assert other.blocks("events", prompt()) == 0


def test_prediction_of_a_sibling_goes_when_it_is_withdrawn_or_its_owner_is_gone() -> None:
    one, other = Place(), Place()
    prediction = one.send("events", prompt())
    one.send("events", prompt(seed=9))
    tell(one.routes, other.routes)

    one.predictions.withdraw(prediction)  # type: ignore[arg-type]
    tell(one.routes, other.routes)
    assert (other.blocks("events", prompt()), other.blocks("events", prompt(seed=9))) == (0, 5)
    other.routes.drop("a")
    assert other.blocks("events", prompt(seed=9)) == 0


def test_endpoint_learns_from_the_routing_of_siblings_and_keeps_it() -> None:
    one, other = Place(), Place()
    one.send("learns", prompt())
    tell(one.routes, other.routes)
    other.routes.drop("a")

    assert other.blocks("learns", prompt()) == 5


def test_whole_brings_learned_blocks_in_their_order_of_use() -> None:
    one, other = Place(), Place()
    one.send("learns", prompt(seed=9))
    one.send("learns", prompt(n_blocks=20))
    other.routes.replace("a", one.routes.whole())
    for place in (one, other):
        place.atlas.set_capacity("learns", FASTEST, 12)
        assert (place.blocks("learns", prompt(n_blocks=20)), place.blocks("learns", prompt(seed=9))) == (
            12,
            0,
        )


def test_whole_brings_the_most_recently_used_of_too_many_learned_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "MAX_LEARNED", 12)
    one, other = Place(), Place()
    one.send("learns", prompt(seed=9))
    one.send("learns", prompt(n_blocks=20))

    other.routes.replace("a", one.routes.whole())

    blocks = [other.blocks("learns", each) for each in (prompt(n_blocks=20), prompt(seed=9))]
    assert blocks == [12, 0]


def test_whole_brings_the_newest_of_too_many_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_PREDICTED", 12)
    one, other = Place(), Place()
    for seed in (0, 7, 9):
        one.send("events", prompt(seed=seed))

    other.routes.replace("a", one.routes.whole())

    assert [other.blocks("events", prompt(seed=seed)) for seed in (0, 7, 9)] == [0, 5, 5]


def test_whole_brings_open_predictions_and_learned_blocks() -> None:
    one, other = Place(), Place()
    one.send("events", prompt())
    one.send("learns", prompt(seed=9))
    one.routes.drain()  # lost

    other.routes.replace("a", one.routes.whole())
    other.routes.replace("a", one.routes.whole())

    assert (other.blocks("events", prompt()), other.blocks("learns", prompt(seed=9))) == (5, 5)
    assert other.predictions.n_open == 1


def test_payload_applied_again_predicts_once() -> None:
    one, other = Place(), Place()
    one.send("events", prompt())
    (payload,) = one.routes.drain()
    for _ in range(3):
        other.routes.apply("a", payload)
    assert other.predictions.n_open == 1


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(Sent(1, "nobody", SIZE, 0, bytes(8), 1.0, 1.0), id="unknown_endpoint"),
        pytest.param(Sent(1, "events", 7, 0, bytes(8), 1.0, 1.0), id="other_block_size"),
        pytest.param(Sent(0, "events", SIZE, 0, bytes(8), 1.0, 1.0), id="no_prediction"),
    ],
)
def test_prompt_of_no_use_changes_no_endpoint(sent: Sent) -> None:
    place = Place()
    place.routes.apply("a", msgspec.msgpack.encode(Changes([sent])))
    assert place.blocks("events", prompt()) == 0


def test_keys_that_are_cut_are_malformed() -> None:
    place = Place()
    with pytest.raises(MalformedError):
        place.routes.apply(
            "a", msgspec.msgpack.encode(Changes([Sent(1, "events", SIZE, 0, bytes(9), 1.0, 1.0)]))
        )


# -- sums and uses ----------------------------------------------------------------------------------------------------


def audited(reused: int) -> Audited:
    return Audited("e", Verdict.UNKNOWN, "gpu", {"gpu": 3000}, {"gpu": reused})


def test_evidence_of_two_replicas_doubts_an_endpoint_that_neither_would_alone() -> None:
    audits, channels = [Audit(), Audit()], [Sums(lambda: 50.0), Sums(lambda: 50.0)]
    for audit, channel in zip(audits, channels, strict=True):
        channel.use({"fleet/audit": audit.shared})
        audit.add(audited(300), now=50.0)
        assert audit.doubts(now=50.0) == {}

    tell(channels[0], channels[1])
    assert audits[1].doubts(now=50.0) == {"e": pytest.approx(0.1)}
    channels[1].drop("a")
    assert audits[1].doubts(now=50.0) == {}


def test_sums_of_siblings_reach_the_policy_that_comes_in_force_later() -> None:
    audit, one, other = Audit(), Sums(lambda: 0.0), Sums(lambda: 0.0)
    one.use({"fleet/audit": audit.shared})
    audit.add(audited(300), now=0.0)
    audit.add(audited(300), now=0.0)
    tell(one, other)

    later = Audit()
    other.use({"fleet/audit": later.shared})

    assert later.doubts(now=0.0).keys() == {"e"}


def test_sums_of_siblings_are_as_old_as_they_were_when_another_policy_comes_in_force() -> None:
    now = 50.0
    audits, channels = [Audit(), Audit()], [Sums(lambda: now), Sums(lambda: now)]
    for audit, channel in zip(audits, channels, strict=True):
        channel.use({"fleet/audit": audit.shared})
    for _ in range(2):
        audits[0].add(audited(300), now=now)
    tell(channels[0], channels[1])
    now = 110.0
    recovered = audits[1].doubts(now=now)
    assert recovered["e"] > audits[1].doubts(now=50.0)["e"]

    channels[1].use({"fleet/audit": audits[1].shared})

    assert audits[1].doubts(now=now) == recovered


def test_sums_that_are_shared_by_another_name_forget_what_siblings_told_by_the_old_one() -> None:
    audits, channels = [Audit(), Audit()], [Sums(lambda: 50.0), Sums(lambda: 50.0)]
    for audit, channel in zip(audits, channels, strict=True):
        channel.use({"old/audit": audit.shared})
        audit.add(audited(300), now=50.0)
    tell(channels[0], channels[1])

    channels[1].use({"new/audit": audits[1].shared})
    channels[1].drop("a")

    assert audits[1].doubts(now=50.0) == {}


def test_whole_of_sums_has_ages_as_of_now_and_is_not_sent_again_as_a_change() -> None:
    now, told = 50.0, list[tuple[float, ...]]()

    def take(_: str, theirs: Sequence[Contribution]) -> None:
        told.extend(tuple(each.numbers) for each in theirs)

    one, other = Sums(lambda: now), Sums(lambda: now)
    one.use({"p/s": SharedSums(lambda _, at: (3.0, at - 50.0), take, lambda: ("e",))})
    other.use({"p/s": SharedSums(lambda _, __: None, take, lambda: ())})
    assert one.drain()
    now = 60.0

    other.replace("a", one.whole())

    assert told == [(3.0, 10.0)]
    assert one.drain() == []


def test_uses_of_siblings_are_as_old_as_they_were() -> None:
    seen: list[tuple[str, str, float]] = []

    def ignore(key: str, value: str, at: float, now: float) -> None:
        raise AssertionError((key, value, at, now))

    mine = SharedUses(ignore, lambda: {"k": ("v", 90.0)})
    theirs = SharedUses(lambda key, value, at, _: seen.append((key, value, at)), dict)
    one, other = Uses(lambda: 100.0), Uses(lambda: 7.0)
    one.use({"p/s": mine})
    other.use({"p/s": theirs})

    mine.note("new", "x")
    tell(one, other)
    other.replace("a", one.whole())
    other.drop("a")

    assert seen == [("new", "x", 7.0), ("k", "v", -3.0)]


def test_uses_of_endpoints_with_long_names_are_shared_and_too_long_ones_spoil_no_others() -> None:
    seen: dict[str, str] = {}
    known = {f"{number:032x}": ("\u4e2d" * 512, 0.0) for number in range(1000)} | {"long": ("n" * 513, 0.0)}

    def note(key: str, value: str, _at: float, _now: float) -> None:
        seen[key] = value

    one, other = Uses(lambda: 0.0), Uses(lambda: 0.0)
    one.use({"p/s": SharedUses(note, lambda: known)})
    other.use({"p/s": SharedUses(note, dict)})

    whole = one.whole()
    other.replace("a", whole)

    assert max(map(len, whole)) <= MAX_PAYLOAD_BYTES
    assert seen == {key: value for key, (value, _) in known.items() if key != "long"}


def test_nothing_is_collected_when_nobody_shares() -> None:
    knowledge, audit = Knowledge(lambda: 0.0), Audit()
    knowledge.use(Shared())
    audit.add(audited(300), now=0.0)

    assert audit.shared.changed == {}
    assert audit.shared.on_change is None


DEEP = b"\x91" * 5000 + b"\xc0"
"""Lists in lists, as the last field of a newer version would be."""


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        pytest.param(Place().routes, b"\x94\x90\x90\x90" + DEEP, id="routes"),
        pytest.param(Picks("me"), b"\x93\x01\x90" + DEEP, id="picks"),
        pytest.param(Uses(lambda: 0.0), b"\x91\x95\xa1s\xa1k\xa1v\x00" + DEEP, id="uses"),
    ],
)
def test_payload_that_nests_deeply_is_malformed(channel: Channel, payload: bytes) -> None:
    with pytest.raises(MalformedError):
        channel.apply("a", payload)
