"""The check `ports-apart`, which computes all addresses only of endpoints whose ports may meet."""

from __future__ import annotations

import itertools

import pytest

from kvatlas.api.doctor.check import State, examine
from kvatlas.api.doctor.deployment import Deployment
from kvatlas.api.doctor.setup import CHECKS
from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.schema import EndpointsConfig, EventsConfig, KVAtlasConfig, StaticEndpoint

EVENTS = [None, "", "tcp://h:5557", "tcp://[::1]:5557", "tcp://x:5560", "ipc:///run/a"]
REPLAY = [None, "", "tcp://h:5557", "tcp://h:5558", "tcp://x:5561", "ipc:///run/a"]
(CHECK,) = (check for check in CHECKS if check.name == "ports-apart")


@pytest.mark.parametrize("n_ranks", [1, 2, 4])
@pytest.mark.parametrize(
    "section",
    [
        EventsConfig(port=5557, replay_port=5558),
        EventsConfig(port=5558, replay_port=5557),
        EventsConfig(port=5557, replay_port=5560),
        EventsConfig(port=5557, replay_port=5557, mode="bind", bind="tcp://h:5558"),
    ],
)
def test_check_fails_exactly_when_two_ranks_share_an_address(section: EventsConfig, n_ranks: int) -> None:
    seen: set[State] = set()
    for events, replay in itertools.product(EVENTS, REPLAY):
        endpoint = StaticEndpoint(
            name="a", address="h:1", events=events, replay=replay, data_parallel_size=n_ranks
        )
        try:
            ranks = endpoint_addresses(endpoint, section).ranks
        except ValueError:
            continue  # refused with the file
        shared = {rank.events for rank in ranks} & {rank.replay for rank in ranks} - {None}
        config = KVAtlasConfig(
            api_version="kvatlas/v1",
            events=section,
            endpoints=EndpointsConfig(static=(endpoint,)),
        )
        (result,) = examine((CHECK,), Deployment(config))
        assert result.state is (State.FAIL if shared else State.OK), (events, replay)
        seen.add(result.state)
    assert State.OK in seen
