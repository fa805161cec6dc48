"""Whatever happens to messages and replicas: in the end all have the same sums, and none of those that are gone counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvatlas.fleet.replicas.entries import Entries
from support.replica_network import MS, Network

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


def make_sums(_: str) -> tuple[Sums, dict[str, Entries[int]]]:
    sums = Sums()
    return sums, {"sums": sums.channel}


class Interleavings(RuleBasedStateMachine):
    """Replicas whose messages meet any fate; once the network is well again, all of them have the same sums."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(make_sums)

    @initialize()
    def start_all(self) -> None:
        for name in NAMES:
            self.network.start(name)

    @rule(name=st.sampled_from(NAMES), key=st.sampled_from(KEYS), value=st.integers(0, 1000))
    def put(self, name: str, key: str, value: int) -> None:
        if name in self.network.hosts:
            self.network.hosts[name].state.put(key, value)

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

    @invariant()
    def no_sum_is_negative(self) -> None:
        for host in self.network.hosts.values():
            assert all(host.state.total(key) >= 0 for key in KEYS)

    def teardown(self) -> None:
        for host in self.network.hosts.values():
            host.is_cut_off = False
        self.network.fate = lambda: [MS]
        self.network.run(2500, step_ms=25)
        hosts = self.network.hosts.values()
        expected = {key: sum(host.state.own.get(key, 0) for host in hosts) for key in KEYS}
        for host in hosts:
            assert {key: host.state.total(key) for key in KEYS} == expected
            assert len(host.replica.live) == len(hosts) - 1
        super().teardown()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=15)
