"""Whatever happens to messages and replicas: in the end all have the same sums, and none of those that are gone counts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvatlas.fleet.in_flight import Booking, InFlight
from kvatlas.fleet.predictions import Predictions
from kvatlas.fleet.replicas.channel import Channel
from kvatlas.fleet.replicas.entries import Entries
from kvatlas.fleet.replicas.knowledge import Knowledge
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.predicted import Prediction
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.scorers.core.model import Candidate
from kvatlas.scorers.core.shared import Shared
from kvatlas.scorers.latency.lengths import OutputLengths
from kvatlas.scorers.latency.links import Link, Links
from support.replica_network import MS, Network

S = TypeVar("S")

NAMES = ("a", "b", "c")
KEYS = ("x", "y", "z")
DELAYS = st.lists(st.integers(0, 400), max_size=3)
"""Milliseconds after which the copies of a message arrive; none: it is lost."""


class Sums:
    """Own numbers by key, and the sums over the siblings."""

    def __init__(self) -> None:
        self.channel = Entries(int, self._changed, max_entries=10)
        self.own: dict[str, int] = {}
        self.theirs: Counter[str] = Counter()

    def put(self, key: str, value: int) -> None:
        self.own[key] = value
        self.channel.put(key, value or None)

    def _changed(self, _: str, key: str, before: int | None, after: int | None) -> None:
        self.theirs[key] += (after or 0) - (before or 0)

    def total(self, key: str) -> int:
        return self.own.get(key, 0) + self.theirs[key]


def make_sums(_: str) -> tuple[Sums, dict[str, Channel]]:
    sums = Sums()
    return sums, {"sums": sums.channel}


class Fates(RuleBasedStateMachine, Generic[S]):
    """Replicas whose messages meet any fate."""

    network: Network[S]

    @initialize()
    def start_all(self) -> None:
        for name in NAMES:
            self.network.start(name)
        self.network.run(300, step_ms=25)

    @rule()
    def run_well(self) -> None:
        self.network.fate = lambda: [MS]
        self.network.run(100, step_ms=25)

    @rule(delays=st.lists(DELAYS, min_size=1, max_size=20), ms=st.integers(5, 300))
    def run_badly(self, delays: list[list[int]], ms: int) -> None:
        fates = iter(delays * 10_000)
        self.network.fate = lambda: [delay * MS for delay in next(fates, [1])]
        self.network.run(ms, step_ms=25)

    @rule(name=st.sampled_from(NAMES))
    def restart(self, name: str) -> None:
        self.network.start(name)

    @rule(name=st.sampled_from(NAMES))
    def kill(self, name: str) -> None:
        if len(self.network.hosts) > 1 and name in self.network.hosts:
            self.network.kill(name)

    @rule(name=st.sampled_from(NAMES))
    def cut_off_or_back(self, name: str) -> None:
        if name in self.network.hosts:
            host = self.network.hosts[name]
            host.is_cut_off = not host.is_cut_off

    def recover(self) -> None:
        """Make the network well, and let time pass."""
        for host in self.network.hosts.values():
            host.is_cut_off = False
        self.network.fate = lambda: [MS]
        self.network.run(2500, step_ms=25)
        for host in self.network.hosts.values():
            assert len(host.replica.live) == len(self.network.hosts) - 1


class Interleavings(Fates[Sums]):
    """Once the network is well again, all replicas have the same sums."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(make_sums)

    @rule(name=st.sampled_from(NAMES), key=st.sampled_from(KEYS), value=st.integers(0, 1000))
    def put(self, name: str, key: str, value: int) -> None:
        if name in self.network.hosts:
            self.network.hosts[name].state.put(key, value)

    @invariant()
    def no_sum_is_negative(self) -> None:
        for host in self.network.hosts.values():
            assert all(host.state.total(key) >= 0 for key in KEYS)

    def teardown(self) -> None:
        self.recover()
        hosts = self.network.hosts.values()
        expected = {key: sum(host.state.own.get(key, 0) for host in hosts) for key in KEYS}
        for host in hosts:
            assert {key: host.state.total(key) for key in KEYS} == expected
        super().teardown()


class Picker:
    """What a picker has of its endpoints, and the requests that it has sent there.

    Args:
        me: id of its replica.
        clock: returns seconds.
    """

    def __init__(self, me: str, clock: Callable[[], float]) -> None:
        atlas = Atlas(tiers=TierTable([TierSpec(name="gpu", media=("GPU",))]), seed=0, core=index_core())
        self.predictions = Predictions(atlas, ttl_s=500.0)
        for name in KEYS:
            atlas.add(name)
            for ledger in atlas.ledgers(name):
                ledger.use_block_size(1)
        knowledge = Knowledge(clock, me=me)
        knowledge.follow(atlas, self.predictions)
        self.lengths, self.links = OutputLengths(), Links(1.0)
        knowledge.use(Shared(sums={"lengths": self.lengths.shared, "links": self.links.shared}))
        self.channels, self.picks = knowledge.channels, knowledge.picks
        self.in_flight = InFlight(knowledge.bookings)
        self._atlas = atlas
        self.open: list[tuple[Booking, Prediction]] = []

    def route(self, endpoint: str, tokens: int) -> None:
        prefix = Prefix(array("I", range(tokens, tokens + 4)))
        match = self._atlas.match(prefix)[endpoint]
        picked = Candidate(name=endpoint, address=endpoint, labels={}, load=None, prefix=match)
        prediction = self.predictions.routed(picked, prefix, now=0.0)
        assert prediction is not None
        self.open.append((self.in_flight.book(endpoint, tokens=tokens, now=0.0), prediction))

    def observe(self, n_tokens: int, link: Link) -> None:
        for _ in range(20):
            self.lengths.add("m", n_tokens)
        known_ms = self.links.ms_per_token(link)
        self.links.learn(
            link, transfer_ms=known_ms, observed_ms=100.0 + n_tokens, expected_ms=100.0 + known_ms
        )

    def begin(self, number: int) -> None:
        booking, prediction = self.open[number % len(self.open)]
        booking.begun()
        self.predictions.begun(prediction)

    def end(self, number: int) -> None:
        booking, prediction = self.open.pop(number % len(self.open))
        booking.ended()
        self.predictions.withdraw(prediction)


class Requests(Fates[Picker]):
    """Once the network is well again, each request of a picker that lives counts once everywhere, and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(self.make_picker)

    def make_picker(self, me: str) -> tuple[Picker, dict[str, Channel]]:
        picker = Picker(me, lambda: self.network.now_ns / 1e9)
        return picker, picker.channels

    @rule(name=st.sampled_from(NAMES), endpoint=st.sampled_from(KEYS), tokens=st.integers(1, 9))
    def route(self, name: str, endpoint: str, tokens: int) -> None:
        if name in self.network.hosts:
            self.network.hosts[name].state.route(endpoint, tokens)

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 9), ends=st.booleans())
    def respond(self, name: str, number: int, ends: bool) -> None:
        host = self.network.hosts.get(name)
        if host is not None and host.state.open:
            (host.state.end if ends else host.state.begin)(number)

    @rule(
        name=st.sampled_from(NAMES),
        n_tokens=st.integers(1, 5000),
        link=st.sampled_from([("a", "b"), ("b", None)]),
    )
    def observe(self, name: str, n_tokens: int, link: Link) -> None:
        if name in self.network.hosts:
            self.network.hosts[name].state.observe(n_tokens, link)

    def teardown(self) -> None:
        self.recover()
        pickers = [host.state for host in self.network.hosts.values()]
        for endpoint in KEYS:
            own = [each.in_flight.own(endpoint) for each in pickers]
            total = (sum(each.requests for each in own), sum(each.tokens for each in own))
            for picker in pickers:
                load = picker.in_flight.of(endpoint)
                assert (load.requests, load.tokens) == total
        n_open = sum(len(each.open) for each in pickers)
        assert [each.predictions.n_open for each in pickers] == [n_open] * len(pickers)
        for learned in zip(*(self.learned(each) for each in pickers), strict=True):
            assert learned == (pytest.approx(learned[0]),) * len(pickers)
        self.cross(pickers)
        super().teardown()

    def learned(self, picker: Picker) -> list[float]:
        speeds = [picker.links.ms_per_token(link) for link in (("a", "b"), ("b", None))]
        return [picker.lengths.mean("m"), picker.lengths.under_way("m"), *speeds]

    def cross(self, pickers: list[Picker]) -> None:
        """Whatever was lost before, picks that cross count once for each pair and side, and no others."""
        for _ in range(2):  # now each knows again what the others know
            self.one_after_the_other(pickers)
        before = [each.picks.n_concurrent for each in pickers]
        self.one_after_the_other(pickers)
        assert [each.picks.n_concurrent for each in pickers] == before
        for picker in pickers:
            picker.route("x", 1)
        self.network.run(50)
        assert [each.picks.n_concurrent for each in pickers] == [n + len(pickers) - 1 for n in before]

    def one_after_the_other(self, pickers: list[Picker]) -> None:
        for picker in pickers:
            picker.route("x", 1)
            self.network.run(50)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=15)
TestRequests = Requests.TestCase
TestRequests.settings = settings(stateful_step_count=15)
