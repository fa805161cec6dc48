"""The fleet without a network: restarts found by facts, and the ledgers that ranks hold."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.indexer.sources import PATIENCE_S
from kvatlas.indexer.tiers import TierId, TierSource
from kvatlas.scorers.core.model import Load
from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.fleets import NOWHERE, make_fleet

WITHOUT_EVENTS = EndpointAddresses(
    serving=HostPort("10.0.0.1", 8000),
    metrics=None,
    ranks=(RankAddresses(0, None, None), RankAddresses(1, None, None)),
)
SILENT = replace(WITHOUT_EVENTS, ranks=(RankAddresses(0, NOWHERE, None),))
"""An endpoint whose publisher never comes."""

FACTS = EngineFacts(n_engines=2, block_size=4, num_gpu_blocks=200, process_start_s=1000.0)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with make_fleet() as fleet:
        yield fleet


async def test_restart_of_an_endpoint_without_events_forgets_what_routing_taught(fleet: Fleet) -> None:
    fleet.add("a", WITHOUT_EVENTS, {})
    fleet.facts_changed("a", FACTS)
    prompt = fleet.atlas.prefix(array("I", range(8)))
    fleet.atlas.routed("a", prompt)
    assert fleet.atlas.match(prompt)["a"].rank_usable_tokens == {0: 4, 1: 4}

    fleet.facts_changed("a", replace(FACTS, process_start_s=2000.0))
    assert fleet.atlas.match(prompt)["a"].usable_blocks == 0
    for ledger in fleet.atlas.ledgers("a"):
        assert ledger.sources.of(TierId(0)) is TierSource.ROUTING
    fleet.atlas.routed("a", prompt)
    assert fleet.atlas.match(prompt)["a"].rank_usable_tokens == {0: 4, 1: 4}


@pytest.mark.parametrize(("block_size", "usable"), [(None, 0), (4, 2)], ids=["untold", "told"])
async def test_slow_tiers_first_events_count_at_the_configured_block_size(
    fleet: Fleet, block_size: int | None, usable: int
) -> None:
    fleet.add("a", replace(SILENT, block_size=block_size), {})
    for block in range(2):
        tokens, parent = array("I", range(4 * block, 4 * block + 4)), EngineHash(block) if block else None
        event = BlockStored((EngineHash(block + 1),), parent, tokens, 4, MediumName("CPU"))
        fleet.atlas.apply("a", 0, [event])
    found = fleet.atlas.match(fleet.atlas.prefix(array("I", range(12)))).get("a")
    assert (found.usable_blocks if found is not None else 0) == usable


async def test_metrics_outweigh_the_configured_block_size(fleet: Fleet) -> None:
    fleet.add("a", replace(SILENT, block_size=16), {})
    (ledger,) = fleet.atlas.ledgers("a")
    assert ledger.block_size == 16
    fleet.facts_changed("a", FACTS)
    assert ledger.block_size == FACTS.block_size


async def test_load_comes_with_the_tokens_that_the_index_knew_on_the_gpu_then() -> None:
    loads = LoadTable(stale_after_s=5.0)
    async with make_fleet(loads=loads) as fleet:
        fleet.add("a", SILENT, {})
        fleet.add("b", SILENT, {})
        for medium, block in (("GPU", 1), ("GPU", 2), ("CPU", 3)):
            tokens, parent = (
                array("I", range(4 * block, 4 * block + 4)),
                EngineHash(block - 1) if block > 1 else None,
            )
            fleet.atlas.apply(
                "a", 0, [BlockStored((EngineHash(block),), parent, tokens, 4, MediumName(medium))]
            )
        for name in ("a", "b", "unknown"):
            loads.put(name, Load(0, 0, 0.0, 1.0, gpu_tokens=800))
        found = {each.name: each.load for each in fleet.candidates(None, now=1.0)}

    assert {name: load and load.gpu_cached_tokens for name, load in found.items()} == {"a": 8, "b": 0}


async def test_rank_holds_the_ledger_of_the_index_when_it_is_reset_or_added_again(fleet: Fleet) -> None:
    def assert_held() -> None:
        endpoint = fleet.get("a")
        assert endpoint is not None
        assert endpoint.ranks
        for rank in endpoint.ranks:
            assert rank.ledger is fleet.atlas.ledger("a", rank.number)

    fleet.add("a", WITHOUT_EVENTS, {})
    assert_held()
    fleet.reset("a")
    assert_held()
    await fleet.remove_rank("a", 1)
    fleet.add_rank("a", RankAddresses(1, NOWHERE, None))
    assert_held()
    with pytest.raises(ValueError, match="'a' has rank 1 already"):
        fleet.add_rank("a", RankAddresses(1, NOWHERE, None))
    assert_held()
    await fleet.remove("a")
    fleet.add("a", WITHOUT_EVENTS, {})
    assert_held()


@pytest.mark.parametrize(
    ("labels", "facts", "source"),
    [
        pytest.param({}, {"finds_outside": True}, TierSource.INFERRED, id="hits"),
        pytest.param({ROLE_LABEL: "prefill"}, {"finds_outside": True}, TierSource.INFERRED, id="of_prefill"),
        pytest.param({ROLE_LABEL: "decode"}, {"finds_outside": True}, None, id="hits_from_a_prefill_server"),
        pytest.param({ROLE_LABEL: "decode"}, {"offloads": True}, TierSource.INFERRED, id="bytes"),
    ],
)
async def test_second_tier_is_inferred_when_tokens_can_have_come_from_there_alone(
    fleet: Fleet, labels: dict[str, str], facts: dict[str, bool], source: TierSource | None
) -> None:
    fleet.add("a", WITHOUT_EVENTS, labels)
    fleet.facts_changed("a", EngineFacts(n_engines=2, **facts))

    fleet.tick(now=0.0)
    fleet.tick(now=PATIENCE_S)

    assert {ledger.sources.of(TierId(1)) for ledger in fleet.atlas.ledgers("a")} == {source}
