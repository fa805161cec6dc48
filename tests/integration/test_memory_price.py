"""What a prompt takes of the memory of a GPU, as a running `kvatlas serve` prices it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engine_metrics import metrics_of
from support.gateway import ADDRESSES, Gateway, gateway
from support.scraping import metrics
from support.waiting import until

pytestmark = pytest.mark.slow

N_TOKENS = 650
"""40 blocks and 10 tokens."""

PLUGINS = [{"type": "fleet-cost-scorer", "parameters": {"displacementFactor": 0, "priceFactor": 0}}]


async def memory_ms(gate: Gateway) -> dict[str, float]:
    """Return the price of the memory that the prompt would take now, by endpoint."""
    asked = {"model": "m", "token_ids": list(range(N_TOKENS))}
    decision = await gate.served.post("/v1/score", asked)
    return {each["name"]: each["scores"][0]["partsMs"]["memory"] for each in decision["endpoints"]}


async def test_blocks_of_a_prompt_under_way_are_priced_once(tmp_path: Path) -> None:
    async with metrics_of(metrics(blocks=1000).decode()) as (url, _):
        servers = [
            {"name": name, "address": address, "events": "", "metrics": url}
            for address, name in ADDRESSES.items()
        ]
        async with gateway(tmp_path, endpoints={"static": servers}, plugins=PLUGINS) as gate:

            async def is_priced() -> bool:
                return all(ms > 0.0 for ms in (await memory_ms(gate)).values())

            await until(is_priced, what="scrapes of both endpoints")
            before = await memory_ms(gate)
            request = await gate.request(N_TOKENS)
            during = await memory_ms(gate)
            await request.end()

            async def is_as_before() -> bool:
                return await memory_ms(gate) == before

            await until(is_as_before, what="the blocks to be free")

    (other,) = set(ADDRESSES.values()) - {request.endpoint}
    assert during[other] == before[other] == before[request.endpoint]
    assert during[request.endpoint] == pytest.approx(before[other] * 10 / N_TOKENS), (
        "but the last, which is not full"
    )
