"""Transfers take the time that a calculation by hand gives."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.sim.kv_network import Flow, KvNetwork, NetworkSpec

Begun = list[tuple[float, str, str, float]]
"""Start, source, target and bytes of each transfer."""

CARDS = NetworkSpec(server_bytes_per_s=100.0)


def ends_of(
    begun: Begun, spec: NetworkSpec, *, zones: Mapping[str, str], looks: tuple[float, ...] = ()
) -> list[float]:
    """Return when each transfer completes if the network is also advanced at the times `looks`."""
    network, ends = KvNetwork(spec, zones), dict[int, float]()
    due = sorted([(at, place) for place, (at, *_) in enumerate(begun)] + [(at, -1) for at in looks])
    flows = list[tuple[int, Flow]]()
    while due or network.next_at() < inf:
        now = min(network.next_at(), due[0][0] if due else inf)
        done = network.advance(now)
        ends.update({place: now for place, flow in flows if flow in done})
        while due and due[0][0] == now:
            _at, place = due.pop(0)
            if place >= 0:
                _at, source, target, n_bytes = begun[place]
                flows.append((place, network.begin(source, target, n_bytes, now=now)))
    return [ends[place] for place in range(len(begun))]


@pytest.mark.parametrize(
    ("begun", "spec", "ends"),
    [
        pytest.param([(1.0, "p", "d", 300.0)], CARDS, [4.0], id="one_alone"),
        pytest.param([(1.0, "p", "d", 300.0)], NetworkSpec(server_bytes_per_s=100.0, latency_s=0.5), [4.5], id="latency"),
        pytest.param([(1.0, "p", "d", 300.0)], NetworkSpec(), [1.0], id="no_limit"),
        pytest.param([(0.0, "p", "d", 300.0), (0.0, "p", "e", 300.0)], CARDS, [6.0, 6.0], id="two_from_one_server"),
        pytest.param([(0.0, "p", "d", 300.0), (0.0, "q", "d", 300.0)], CARDS, [6.0, 6.0], id="two_to_one_server"),
        pytest.param([(0.0, "p", "d", 300.0), (0.0, "q", "e", 300.0)], CARDS, [3.0, 3.0], id="two_apart"),
        pytest.param([(0.0, "p", "d", 300.0), (0.0, "d", "p", 300.0)], CARDS, [3.0, 3.0], id="both_directions"),
        pytest.param([(0.0, "p", "d", 300.0), (1.0, "p", "e", 100.0)], CARDS, [4.0, 3.0], id="share_for_a_while"),
        pytest.param([(0.0, "p", "d", 0.0)], CARDS, [0.0], id="nothing_to_send"),
        pytest.param(
            [(0.0, "p", "d", 100.0), (0.0, "p", "far", 100.0), (0.0, "q", "far2", 100.0)],
            NetworkSpec(server_bytes_per_s=100.0, zone_bytes_per_s=50.0),
            [2.0, 4.0, 4.0],
            id="between_zones",
        ),
    ],
)  # fmt: skip
def test_transfer_is_done_when_its_links_had_time_for_it(
    begun: Begun, spec: NetworkSpec, ends: list[float]
) -> None:
    assert ends_of(begun, spec, zones={"far": "b", "far2": "b"}) == pytest.approx(ends)


def test_time_never_goes_back() -> None:
    network = KvNetwork(CARDS, {})
    network.advance(5.0)
    network.begin("p", "d", 200.0, now=1.0)

    assert network.next_at() == 7.0


eighths = st.integers(0, 40).map(lambda n: n / 8)


@given(
    begun=st.lists(
        st.tuples(eighths, st.sampled_from("pq"), st.sampled_from("de"), eighths.map(lambda n: 100.0 * n)),
        min_size=1,
        max_size=8,
    ),
    looks=st.lists(eighths, max_size=8).map(tuple),
)
def test_transfers_end_between_alone_and_one_after_another_and_looking_changes_nothing(
    begun: Begun, looks: tuple[float, ...]
) -> None:
    begun = sorted(begun)

    ends = ends_of(begun, CARDS, zones={}, looks=looks)

    assert ends == pytest.approx(ends_of(begun, CARDS, zones={}))
    total_s = sum(n_bytes for *_, n_bytes in begun) / 100.0
    for (at, _source, _target, n_bytes), end in zip(begun, ends, strict=True):
        assert at + n_bytes / 100.0 <= end + 1e-9
        assert end <= begun[-1][0] + total_s + 1e-9
