"""Endpoints without events: the size of their blocks and of their fastest tier."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.schema import EventsConfig, KVAtlasConfig, StaticEndpoint
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.settings import fleet_settings
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierId
from support.fleets import make_config, make_fleet

GPU = TierId(0)
PROMPT = Prefix(array("I", range(640)))
TOLD = EngineFacts(n_engines=1, block_size=32, num_gpu_blocks=1000)


def approximate(**keys: Any) -> KVAtlasConfig:
    return make_config(approximate=keys, tiers=[{"name": "gpu", "media": ["GPU"], "source": "routing"}])


def add(fleet: Fleet) -> None:
    endpoint = StaticEndpoint(name="e", address="127.0.0.1:1", events="", metrics="")
    fleet.add("e", endpoint_addresses(endpoint, EventsConfig()), {})


def sizes(fleet: Fleet) -> tuple[int | None, int | None]:
    """Return the tokens per block, and the blocks of the fastest tier."""
    fleet.tick(now=0.0)
    ledger = fleet.atlas.ledger("e", 0)
    return ledger.block_size, ledger.capacity(GPU)


@pytest.mark.parametrize(
    ("keys", "facts", "found"),
    [
        pytest.param({}, None, (16, 31_250), id="nothing_told"),
        pytest.param({}, TOLD, (32, 1000), id="told"),
        pytest.param({"minBlockSizeTokens": 64}, TOLD, (64, 500), id="larger_blocks"),
        pytest.param(
            {"autoTune": False, "blockSizeTokens": 128, "lruCapacityPerServer": 7}, TOLD, (128, 7), id="given"
        ),
    ],
)
async def test_sizes_are_there_whatever_the_engine_tells(
    keys: dict[str, Any], facts: EngineFacts | None, found: tuple[int, int]
) -> None:
    async with make_fleet(approximate(**keys)) as fleet:
        add(fleet)
        if facts is not None:
            fleet.facts_changed("e", facts)

        assert sizes(fleet) == found


async def test_blocks_are_learned_again_when_the_configured_size_changes() -> None:
    async with make_fleet(approximate()) as fleet:
        add(fleet)
        fleet.atlas.routed("e", PROMPT)

        fleet.configure(fleet_settings(approximate(lruCapacityPerServer=30)))
        assert fleet.atlas.ledger("e", 0).residencies(GPU) == 40, "the size of blocks is the same"

        fleet.configure(fleet_settings(approximate(autoTune=False, blockSizeTokens=64)))
        assert fleet.atlas.ledger("e", 0).residencies(GPU) == 0
        fleet.atlas.routed("e", PROMPT)
        assert fleet.atlas.ledger("e", 0).residencies(GPU) == 10
        assert sizes(fleet)[0] == 64
