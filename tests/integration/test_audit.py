"""Reuse reported by an engine, through a running `kvatlas serve`: verdicts, metrics, and credit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.ext_proc import response_body, response_headers
from support.gateway import Gateway, gateway
from support.publishing import stored
from support.recording import Frame, player

N_TOKENS = 1024
SCORERS = [{"type": "prefix-cache-scorer"}]


async def answered(gate: Gateway, cached_tokens: int, request_id: str = "") -> None:
    """Send a request for the prompt that the engine holds, and its response."""
    request = await gate.request(N_TOKENS, ("x-request-id", request_id))
    usage = {"prompt_tokens": N_TOKENS, "prompt_tokens_details": {"cached_tokens": cached_tokens}}
    await request.say(response_headers(("content-type", "application/json")))
    await request.say(response_body(json.dumps({"usage": usage}).encode(), end=True))
    await request.call.done_writing()
    await request.call.code()


def removed(seq: int) -> Frame:
    """Return the event that removes the prompt's blocks from the GPU."""
    topic, number, payload = stored(seq, range(N_TOKENS)).parts
    _, (event,), rank = msgspec.msgpack.decode(payload)
    gone = {"type": "BlockRemoved", "block_hashes": event["block_hashes"], "medium": "GPU"}
    return Frame(0.0, "", (topic, number, msgspec.msgpack.encode([time.time(), [gone], rank])))


async def score(gate: Gateway) -> float:
    answer: dict[str, Any] = await gate.served.post(
        "/v1/score", {"model": "m", "token_ids": list(range(N_TOKENS))}
    )
    total: float = answer["endpoints"][0]["total"]
    return total


@pytest.mark.slow
async def test_endpoint_that_reuses_less_than_expected_loses_credit_until_it_does_again(
    tmp_path: Path,
) -> None:
    async with player() as playing:
        fleet = [
            {
                "name": "a",
                "address": "127.0.0.1:1",
                "metrics": "",
                "events": playing.events,
                "replay": playing.replay,
            }
        ]
        async with gateway(tmp_path, plugins=SCORERS, endpoints={"static": fleet}) as gate:
            await playing.publish(stored(0, range(N_TOKENS)))
            await gate.served.until_applied("a", 0)
            usable = N_TOKENS - 16  # the last token is always computed
            assert await gate.served.get("/v1/audit") == {"endpoints": [], "missingReplicas": []}
            await answered(gate, usable)
            assert await score(gate) == 1.0

            for number in range(12):
                await answered(gate, 0, f"bad-{number}")
            lost = await score(gate)
            (row,) = (await gate.served.get("/v1/audit"))["endpoints"]
            kept = (await gate.served.get("/v1/decisions/bad-3"))["audited"]
            for _ in range(30):
                await answered(gate, usable)
            again = await score(gate)
            metrics = await gate.served.metrics()
    assert lost < 0.5
    assert again == 1.0
    assert (row["name"], row["requests"]) == ("a", 13)
    assert {verdict: n for verdict, n in row["verdicts"].items() if n} == {"good": 1, "unknown": 12}
    assert (row["expectedTokens"], row["reusedTokens"]) == ({"gpu": 13 * usable}, {"gpu": usable})
    assert (row["overTokens"], row["underTokens"]) == (12 * usable, 0)
    assert row["credit"] == pytest.approx(lost, abs=0.1)
    assert kept == {
        "verdict": "unknown",
        "tier": "gpu",
        "expectedTokens": {"gpu": usable},
        "reusedTokens": {"gpu": 0},
        "errorTokens": usable,
    }
    assert 'kvatlas_audited_requests_total{endpoint="a",verdict="good"} 31.0' in metrics
    assert f'kvatlas_audit_error_tokens_total{{direction="over",endpoint="a"}} {12.0 * usable}' in metrics
    assert 'kvatlas_audit_credit{endpoint="a"} 1.0' in metrics


@pytest.mark.slow
async def test_tier_that_gives_less_than_is_inferred_of_it_is_bounded_to_less(tmp_path: Path) -> None:
    tiers = [{"name": "gpu", "media": ["GPU"]}, {"name": "cpu", "media": ["CPU"], "source": "inferred"}]
    async with player() as playing:
        address = {"events": playing.events, "replay": playing.replay}
        fleet = [{"name": "a", "address": "127.0.0.1:1", "metrics": "", **address}]
        sections: dict[str, Any] = {"endpoints": {"static": fleet}, "tiers": tiers}
        sections["predictions"] = {"enabled": False}  # otherwise a failed block counts as not computed yet
        async with gateway(tmp_path, plugins=SCORERS, **sections) as gate:
            await playing.publish(stored(0, range(N_TOKENS)), removed(1))
            await gate.served.until_applied("a", 1)
            before = (await gate.served.get("/v1/endpoints/a"))["tiers"][1]
            for _ in range(16):
                await answered(gate, 0)
            thin = (await gate.served.get("/v1/endpoints/a"))["tiers"][1]
            await answered(gate, 0)
            after = (await gate.served.get("/v1/endpoints/a"))["tiers"][1]
    assert [tier["residencies"] for tier in (before, thin)] == [64, 64]
    assert [tier["capacity"] for tier in (before, thin)] == [None, None]
    assert after["capacity"] == after["residencies"] == 40  # the first step after 64 failing blocks
    assert (after["source"], after["configuredCapacity"]) == ("inferred", "auto")
