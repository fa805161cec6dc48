"""A burst of equal prompts through a running `kvatlas serve`, before and after the engine's events."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.engine_metrics import metrics_of
from support.ext_proc import response_headers
from support.gateway import ADDRESSES, Gateway, gateway
from support.publishing import stored
from support.recording import player
from support.scraping import metrics
from support.waiting import until

PRECISE = {
    "type": "precise-prefix-cache-producer",
    "parameters": {"speculativeIndexing": True, "speculativeTTL": "1h"},
}
SCORER = {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": PRECISE["type"]}}
N_TOKENS = 160


async def usable_and_predicted(gate: Gateway, endpoint: str) -> tuple[int, int]:
    """Return the usable and the predicted tokens of the prompt."""
    answer: dict[str, Any] = await gate.served.post(
        "/v1/score", {"model": "m", "token_ids": list(range(N_TOKENS + 1))}
    )
    (prefix,) = (each["prefix"] for each in answer["endpoints"] if each["name"] == endpoint)
    return prefix["usableTokens"], prefix["predictedTokens"]


@pytest.mark.slow
async def test_burst_of_equal_prompts_stays_together_until_events_take_over(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        players = {name: await stack.enter_async_context(player()) for name in ADDRESSES.values()}
        static = [
            {"name": name, "address": address, "metrics": "", "events": players[name].events, "replay": ""}
            for address, name in ADDRESSES.items()
        ]
        gate = await stack.enter_async_context(
            gateway(tmp_path, plugins=[PRECISE, SCORER], endpoints={"static": static})
        )
        for name, each in players.items():
            await each.publish(stored(0, [7] * 16))
            await gate.served.until_applied(name, 0)

        burst = [await gate.request(N_TOKENS) for _ in range(8)]
        (endpoint,) = {request.endpoint for request in burst}
        assert await usable_and_predicted(gate, endpoint) == (N_TOKENS, N_TOKENS)

        for request in burst[:3]:
            request.call.cancel()
        await gate.served.until_metric('kvatlas_predictions_total{outcome="withdrawn"} 3.0')
        assert await usable_and_predicted(gate, endpoint) == (N_TOKENS, N_TOKENS), (
            "the other requests continue"
        )
        await burst[3].say(response_headers((":status", "500")))
        await burst[3].end()
        await gate.served.until_metric('kvatlas_predictions_total{outcome="withdrawn"} 4.0')

        await players[endpoint].publish(stored(1, range(N_TOKENS)))
        await gate.served.until_applied(endpoint, 1)
        assert await usable_and_predicted(gate, endpoint) == (N_TOKENS, 0)
        await gate.served.until_metric('kvatlas_predictions_total{outcome="confirmed"} 4.0')
        await gate.served.until_metric("kvatlas_predictions_open 0.0")
        for request in burst[4:]:
            request.call.cancel()
        await until(gate.now(), what="nothing in flight")


@pytest.mark.slow
async def test_burst_stays_together_when_no_engine_has_sent_an_event_yet(tmp_path: Path) -> None:
    """Route a burst right after the start, when only /metrics gives the block size and the replay is complete."""
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(metrics_of(metrics(waiting=0).decode()))
        players = {name: await stack.enter_async_context(player()) for name in ADDRESSES.values()}
        static = [
            {"name": name, "address": address, "metrics": url}
            | {"events": players[name].events, "replay": players[name].replay}
            for address, name in ADDRESSES.items()
        ]
        gate = await stack.enter_async_context(
            gateway(tmp_path, plugins=[PRECISE, SCORER], endpoints={"static": static})
        )

        async def is_known() -> bool:
            rows = (await gate.served.get("/v1/endpoints"))["endpoints"]
            firsts = [row["publishers"][0] for row in rows]
            return all((each["blockSize"], each["trust"]) == (16, "live") for each in firsts)

        await until(is_known, what="block sizes, and histories without a batch")
        burst = [await gate.request(N_TOKENS) for _ in range(8)]
        (endpoint,) = {request.endpoint for request in burst}
        assert await usable_and_predicted(gate, endpoint) == (N_TOKENS, N_TOKENS)

        await players[endpoint].publish(stored(0, range(N_TOKENS)))
        await gate.served.until_metric('kvatlas_predictions_total{outcome="confirmed"} 8.0')
        assert await usable_and_predicted(gate, endpoint) == (N_TOKENS, 0)
        for request in burst:
            request.call.cancel()
        await until(gate.now(), what="nothing in flight")
