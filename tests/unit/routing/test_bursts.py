"""Requests that wait for others."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator

import pytest

from kvatlas.routing.bursts import Bursts
from kvatlas.scorers.core.bursts import BurstRules
from kvatlas.scorers.core.model import BurstPlace
from kvatlas.scorers.core.prefix_source import BurstProducer
from support.picker_parts import PickerParts, picker_parts

KEYS, OTHER = array("Q", [1, 2, 3]), array("Q", [4])


@pytest.fixture
async def parts() -> AsyncGenerator[PickerParts]:
    async with picker_parts({"a": 0, "b": 0}) as made:
        made.fleet.relabel("b", {"zone": "1"})
        yield made


def producer(*, max_requests: int | None = None, max_blocks: int = 9) -> BurstProducer:
    return BurstProducer(0.01, 64, max_blocks, max_requests, BurstRules())


async def placed(
    bursts: Bursts,
    *prompts: array[int],
    by: BurstProducer,
    subset: frozenset[str] | None = None,
    zone: str = "",
) -> list[BurstPlace | None]:
    labels = {"zone": zone} if zone else {}
    return await asyncio.gather(*(bursts.place(by, keys, subset=subset, labels=labels) for keys in prompts))


async def test_equal_prompts_of_one_window_go_together(parts: PickerParts) -> None:
    bursts = Bursts(parts.fleet)

    found = await placed(bursts, KEYS, OTHER, KEYS, by=producer())
    assert found == [BurstPlace("a", 3), None, BurstPlace("a", 3)]
    assert await placed(bursts, KEYS, by=producer()) == [None], "the next window knows nothing of the last"


async def test_prompts_are_compared_by_their_first_blocks(parts: PickerParts) -> None:
    found = await placed(Bursts(parts.fleet), KEYS, KEYS[:2], by=producer(max_blocks=2))
    assert found == [BurstPlace("a", 2)] * 2


async def test_only_endpoints_that_may_take_the_requests_get_them(parts: PickerParts) -> None:
    found = await placed(Bursts(parts.fleet), KEYS, KEYS, by=producer(), zone="1")
    assert found == [BurstPlace("b", 3)] * 2
    assert await placed(Bursts(parts.fleet), KEYS, KEYS, by=producer(), subset=frozenset[str]()) == [None] * 2


async def test_request_beyond_the_limit_does_not_wait(parts: PickerParts) -> None:
    found = await placed(Bursts(parts.fleet), KEYS, KEYS, KEYS, by=producer(max_requests=2))
    assert found == [BurstPlace("a", 3)] * 2 + [None]


async def test_client_that_has_gone_leaves_the_others_their_place(parts: PickerParts) -> None:
    bursts = Bursts(parts.fleet)
    gone = asyncio.ensure_future(bursts.place(producer(), KEYS, subset=None, labels={}))
    staying = asyncio.ensure_future(bursts.place(producer(), KEYS, subset=None, labels={}))
    await asyncio.sleep(0)
    gone.cancel()

    assert await staying == BurstPlace("a", 3)
