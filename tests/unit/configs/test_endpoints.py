"""Addresses derived from an endpoint's address, and given ones."""

from __future__ import annotations

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses, endpoint_addresses
from kvatlas.configs.schema import EventsConfig, StaticEndpoint

DEFAULTS = EventsConfig()


@pytest.mark.parametrize(
    ("endpoint", "addresses"),
    [
        pytest.param(
            StaticEndpoint(name="a", address="10.0.0.1:8000"),
            EndpointAddresses(
                serving=HostPort("10.0.0.1", 8000),
                metrics="http://10.0.0.1:8000/metrics",
                ranks=(RankAddresses(0, "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"),),
            ),
            id="all_derived",
        ),
        pytest.param(
            StaticEndpoint(name="a", address="[2001:db8::1]:8000"),
            EndpointAddresses(
                serving=HostPort("2001:db8::1", 8000),
                metrics="http://[2001:db8::1]:8000/metrics",
                ranks=(RankAddresses(0, "tcp://[2001:db8::1]:5557", "tcp://[2001:db8::1]:5558"),),
            ),
            id="ipv6",
        ),
        pytest.param(
            StaticEndpoint(
                name="a",
                address="10.0.0.1:8000",
                events="tcp://10.0.0.9:6000",
                replay="tcp://10.0.0.9:7000",
                metrics="https://metrics.local/a",
                data_parallel_size=2,
            ),
            EndpointAddresses(
                serving=HostPort("10.0.0.1", 8000),
                metrics="https://metrics.local/a",
                ranks=(
                    RankAddresses(0, "tcp://10.0.0.9:6000", "tcp://10.0.0.9:7000"),
                    RankAddresses(1, "tcp://10.0.0.9:6001", "tcp://10.0.0.9:7001"),
                ),
            ),
            id="all_written_two_ranks",
        ),
        pytest.param(
            StaticEndpoint(name="a", address="10.0.0.1:8000", events="", metrics=""),
            EndpointAddresses(
                serving=HostPort("10.0.0.1", 8000), metrics=None, ranks=(RankAddresses(0, None, None),)
            ),
            id="without_events_there_is_no_replay",
        ),
        pytest.param(
            StaticEndpoint(name="a", address="10.0.0.1:8000", events="ipc:///run/kv.sock", replay=""),
            EndpointAddresses(
                serving=HostPort("10.0.0.1", 8000),
                metrics="http://10.0.0.1:8000/metrics",
                ranks=(RankAddresses(0, "ipc:///run/kv.sock", None),),
            ),
            id="ipc_without_replay",
        ),
    ],
)
def test_addresses_of_an_endpoint(endpoint: StaticEndpoint, addresses: EndpointAddresses) -> None:
    assert endpoint_addresses(endpoint, DEFAULTS) == addresses


def test_derived_ports_follow_the_events_section() -> None:
    (rank,) = endpoint_addresses(
        StaticEndpoint(name="a", address="10.0.0.1:8000"), EventsConfig(port=6000, replay_port=7000)
    ).ranks

    assert (rank.events, rank.replay) == ("tcp://10.0.0.1:6000", "tcp://10.0.0.1:7000")


def test_ranks_share_the_bind_address_but_not_their_replay() -> None:
    addresses = endpoint_addresses(
        StaticEndpoint(name="a", address="10.0.0.1:8000", data_parallel_size=2),
        EventsConfig(mode="bind", bind="tcp://*:6000", port=65535),
    )

    assert addresses.connects_to_us
    assert addresses.ranks == (
        RankAddresses(0, "tcp://*:6000", "tcp://10.0.0.1:5558"),
        RankAddresses(1, "tcp://*:6000", "tcp://10.0.0.1:5559"),
    )


def test_engine_without_events_has_none_in_bind_mode() -> None:
    endpoint = StaticEndpoint(name="a", address="10.0.0.1:8000", events="")

    assert endpoint_addresses(endpoint, EventsConfig(mode="bind")).ranks == (RankAddresses(0, None, None),)


def test_block_size_of_the_file_goes_with_the_endpoint() -> None:
    endpoint = StaticEndpoint(name="a", address="10.0.0.1:8000", block_size=32)

    assert endpoint_addresses(endpoint, DEFAULTS).block_size == 32
