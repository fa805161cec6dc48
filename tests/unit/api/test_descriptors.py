"""The budget of descriptors."""

from __future__ import annotations

from typing import Literal

import pytest

from kvatlas.api.descriptors import (
    FEWEST,
    HEALTH,
    OWN,
    PER_ENDPOINT,
    PER_RANK,
    descriptor_budget,
    process_budget,
    wanted_connections,
)
from kvatlas.configs.listeners import ExtProcConfig, RestConfig, ServerConfig
from kvatlas.configs.schema import KVAtlasConfig

VERSION: Literal["kvatlas/v1"] = "kvatlas/v1"
WANTED = {"server.rest": 1000, "server.metrics": 500}
RESERVED = OWN + HEALTH + 4 * PER_RANK + 2 * PER_ENDPOINT


@pytest.mark.parametrize(
    ("limit", "connections"),
    [
        pytest.param(-1, WANTED, id="unlimited"),
        pytest.param(RESERVED + 1500, WANTED, id="just_enough"),
        pytest.param(RESERVED + 150, {"server.rest": 100, "server.metrics": 50}, id="a_tenth"),
        pytest.param(RESERVED, {"server.rest": FEWEST, "server.metrics": FEWEST}, id="nothing_left"),
        pytest.param(0, {"server.rest": FEWEST, "server.metrics": FEWEST}, id="less_than_reserved"),
    ],
)
def test_connections_get_what_the_process_and_its_fleet_leave(
    limit: int, connections: dict[str, int]
) -> None:
    budget = descriptor_budget(limit, WANTED, n_ranks=4, n_endpoints=2)

    assert budget.connections == connections
    assert (budget.shortage is None) == (connections == WANTED)


def test_shortage_names_the_limit_and_what_is_cut() -> None:
    shortage = descriptor_budget(RESERVED + 150, WANTED, n_ranks=4, n_endpoints=2).shortage

    assert shortage is not None
    assert f"may open {RESERVED + 150} descriptors and needs {RESERVED + 1500}" in shortage
    assert "server.rest 100, server.metrics 50" in shortage


def test_listeners_that_are_off_want_nothing() -> None:
    server = ServerConfig(ext_proc="", metrics="")
    config = KVAtlasConfig(api_version=VERSION, server=server, rest=RestConfig(max_connections=9))

    assert wanted_connections(config) == {"server.rest": 9}


def test_gateways_want_as_many_connections_as_are_configured() -> None:
    config = KVAtlasConfig(api_version=VERSION, ext_proc=ExtProcConfig(max_connections=7))

    assert wanted_connections(config)["server.extProc"] == 7


def test_budget_of_the_process_counts_the_given_fleet() -> None:
    few, many = (
        process_budget(KVAtlasConfig(api_version=VERSION), n_ranks=n, n_endpoints=n) for n in (1, 11)
    )

    assert many.needed - few.needed == 10 * (PER_RANK + PER_ENDPOINT)
