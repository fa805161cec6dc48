"""Answers about instances from columns: the same as from the match of each endpoint."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.rest.asked import Asked, replace_rows
from kvatlas.api.rest.models import QueryRequest
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.fleet.endpoint import Endpoint
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.instance import Instance
from kvatlas.indexer.match import PrefixMatch
from support.fleets import NOWHERE, make_fleet

TOKENS = array("I", range(64))
MEDIA = ("GPU", "CPU", "STORAGE")
ALL = QueryRequest.model_validate({"token_ids": list(TOKENS)})


class AllServed:
    """Every endpoint serves every model but `none`."""

    def served(self, own: str | None, asked: str | None) -> bool:
        return own is None and asked != "none"


def add(fleet: Fleet, name: str, *ranks: int, tenant: str = "default") -> None:
    addresses = [RankAddresses(rank, NOWHERE, None) for rank in ranks]
    instance = Instance(name, tenant)
    fleet.add(instance.endpoint, EndpointAddresses(None, None, tuple(addresses)), {}, instance=instance)


def store(fleet: Fleet, endpoint: str, rank: int, medium: str, n_blocks: int, size: int = 8) -> None:
    tokens = TOKENS[: n_blocks * size]
    hashes = tuple(EngineHash(100 + block) for block in range(n_blocks))
    fleet.atlas.apply(endpoint, rank, [BlockStored(hashes, None, tokens, size, MediumName(medium))])


def expected(endpoint: Endpoint, match: PrefixMatch | None) -> Mapping[str, Any]:
    """Return an answer by the definition of a match."""
    usable = match.rank_usable_tokens if match else dict[int, int]()
    size = match.block_size if match else 0
    gpu, cpu, disk = [blocks * size for blocks in match.held.tier_blocks] if match else (0, 0, 0)
    return {
        "longest_matched": match.usable_tokens if match else 0,
        "GPU": gpu,
        "CPU": cpu,
        "DISK": disk,
        "DP": {str(rank.number): usable.get(rank.number, 0) for rank in endpoint.ranks},
    }


STORES = st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from(MEDIA), st.integers(1, 8))


@given(stores=st.lists(STORES, max_size=12), size=st.sampled_from([4, 8]))
async def test_answer_is_that_of_each_match(stores: list[tuple[int, int, str, int]], size: int) -> None:
    async with make_fleet() as fleet:
        for number in range(4):
            add(fleet, f"e{number}", *range(2 if number < 2 else 1))
        for number, rank, medium, n_blocks in stores:
            if rank < len(fleet_endpoint(fleet, number).ranks):
                store(fleet, f"e{number}", rank, medium, n_blocks, size if number else 8)
        prefix = fleet.atlas.prefix(TOKENS)
        matches = fleet.atlas.match(prefix)
        answer = json.loads(Asked(fleet, AllServed()).of(ALL).answer(fleet.columns(prefix)))
        assert answer == {"default": {each.name: expected(each, matches.get(each.name)) for each in fleet}}


def fleet_endpoint(fleet: Fleet, number: int) -> Endpoint:
    found = fleet.get(f"e{number}")
    assert found is not None
    return found


async def test_kept_instances_follow_the_fleet() -> None:
    async with make_fleet() as fleet:
        asked = Asked(fleet, AllServed())

        def shown(**query: Any) -> Any:
            request = ALL.model_copy(update=query)
            answer = asked.of(request).answer(fleet.columns(fleet.atlas.prefix(TOKENS)))
            return {
                tenant: {name: each["DP"] for name, each in instances.items()}
                for tenant, instances in json.loads(answer).items()
            }

        add(fleet, "a", 0)
        store(fleet, "a", 0, "GPU", 8)
        assert shown() == {"default": {"a": {"0": 56}}}
        add(fleet, "b", 0, tenant="t")
        assert shown() == {"default": {"a": {"0": 56}}, "t": {"b": {"0": 0}}}
        assert shown(tenant_id="t") == {"t": {"b": {"0": 0}}}
        fleet.add_rank("a", RankAddresses(3, NOWHERE, None))
        assert shown() == {"default": {"a": {"0": 56, "3": 0}}, "t": {"b": {"0": 0}}}
        await fleet.remove_rank("a", 0)
        store(fleet, "a", 3, "GPU", 4)
        assert shown(tenant_id="default") == {"default": {"a": {"3": 32}}}
        assert shown(model="none") == {"default": {}}
        await fleet.remove("a")
        assert shown() == {"default": {}, "t": {"b": {"0": 0}}}
        for number in range(100):
            assert shown(instance_id=number) == {"default": {}}
        assert shown(instance_id="b") == {"default": {}, "t": {"b": {"0": 0}}}


async def test_rows_are_replaced_where_the_other_match_is_known() -> None:
    async with make_fleet() as fleet:
        for name in ("a", "b", "c"):
            add(fleet, name, 0, 1)
        for name in ("a", "b"):
            store(fleet, name, 0, "GPU", 8)
            store(fleet, name, 1, "GPU", 2)
        asked = Asked(fleet, AllServed()).of(ALL)
        columns = fleet.columns(fleet.atlas.prefix(TOKENS, salt="s"))
        replace_rows(columns, [1, 2], fleet.columns(fleet.atlas.prefix(TOKENS)))
        answer = json.loads(asked.answer(columns))["default"]
        assert {name: each["DP"] for name, each in answer.items()} == {
            "a": {"0": 0, "1": 0},
            "b": {"0": 56, "1": 16},
            "c": {"0": 0, "1": 0},
        }
        replace_rows(None, [1], columns)


async def test_hybrid_model_computes_the_last_token_of_a_prompt_that_its_cpu_tier_has_as_a_whole() -> None:
    async with make_fleet() as fleet:
        add(fleet, "e", 0)
        for medium, n in (("GPU", 4), ("CPU", 8)):
            hashes, tokens = tuple(EngineHash(100 + block) for block in range(n)), TOKENS[: 8 * n]
            for group, kind in enumerate(("full_attention", "sliding_window")):
                event = BlockStored(hashes, None, tokens, 8, MediumName(medium))
                window = 16 if kind == "sliding_window" else None
                fleet.atlas.apply("e", 0, [replace(event, group=group, kind=kind, window=window)])
        answer = json.loads(
            Asked(fleet, AllServed()).of(ALL).answer(fleet.columns(fleet.atlas.prefix(TOKENS)))
        )
    assert answer["default"]["e"] == {"longest_matched": 63, "GPU": 32, "CPU": 64, "DISK": 0, "DP": {"0": 63}}
