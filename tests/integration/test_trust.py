"""Trust and scores of `kvatlas serve` while its data is incomplete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.engine_metrics import metrics_of
from support.recording import player, read_frames, read_truth
from support.serve import Served, serving
from support.waiting import until


async def row(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = await served.get("/v1/endpoints/vllm")
    return found


@pytest.mark.slow
async def test_lost_connection_lowers_trust_and_prefix_scores_and_keeps_blocks(
    golden: Path, tmp_path: Path
) -> None:
    frames, request = read_frames(golden / "run8_zmq.jsonl")[:4], read_truth(golden / "run8_truth.jsonl")[1]
    async with player() as playing:
        endpoint = {
            "name": "vllm",
            "address": "127.0.0.1:1",
            "metrics": "",
            "events": playing.events,
            "replay": playing.replay,
        }
        config = {
            "model": {"names": ["tiny"]},
            "endpoints": {"static": [endpoint]},
            "events": {"trustCredit": {"stale": 0.25}},
        }
        async with serving(config, tmp_path) as served:
            await playing.publish(*frames)
            await served.until_applied("vllm", frames[-1].seq)
            prompt = {"model": "tiny", "token_ids": request.tokens, "cache_salt": request.salt}
            before = (await served.post("/v1/score", prompt))["endpoints"][0]
            playing.close()

            async def stale() -> bool:
                return bool((await row(served))["publishers"][0]["trust"] == "stale")

            await until(stale, what="a stale publisher")
            after = (await served.post("/v1/score", prompt))["endpoints"][0]
            metrics = await served.metrics()
    assert (before["trust"], after["trust"]) == ("live", "stale")
    assert before["prefix"] == after["prefix"]
    scores = {score["name"]: score["score"] for score in before["scores"]}
    assert scores["gpu-prefix-cache-scorer"] == 1.0
    lowered = {score["name"]: score["score"] for score in after["scores"]}
    assert lowered["gpu-prefix-cache-scorer"] == 0.25
    assert 'kvatlas_publisher_trust{endpoint="vllm",rank="0",state="stale"} 1.0' in metrics
    assert sum("events live -> stale" in line for line in served.log) == 1


@pytest.mark.slow
async def test_tier_is_dark_and_the_flag_named_when_an_engine_offloads_without_events(
    golden: Path, tmp_path: Path
) -> None:
    frames = read_frames(golden / "run1_zmq.jsonl")[:3]  # only GPU events
    metrics_text = (golden / "metrics_run8.txt").read_text()  # from an engine that offloads
    async with metrics_of(metrics_text) as (url, _), player() as playing:
        endpoint = {
            "name": "vllm",
            "address": "127.0.0.1:1",
            "metrics": url,
            "events": playing.events,
            "replay": playing.replay,
        }
        config = {"model": {"names": ["tiny"]}, "endpoints": {"static": [endpoint]}}
        async with serving(config, tmp_path) as served:
            await playing.publish(*frames)
            await served.until_applied("vllm", frames[-1].seq)

            async def inferred() -> bool:
                return bool((await row(served))["tiers"][1]["source"] == "inferred")

            await until(inferred, what="an inferred CPU tier")
            gpu, cpu, _ = (await row(served))["tiers"]
    assert (cpu["dark"], gpu["dark"]) == (True, False)
    assert "self_describing_kv_events" in cpu["advice"]
    assert cpu["residencies"] == gpu["residencies"] > 0
    assert cpu["capacity"] == gpu["capacity"] == 64
    assert sum("source of tier cpu is inferred" in line for line in served.log) == 1


@pytest.mark.slow
async def test_publisher_starts_over_when_only_the_process_start_time_shows_a_restart(
    golden: Path, tmp_path: Path
) -> None:
    frames = read_frames(golden / "run8_zmq.jsonl")
    metrics_text = (golden / "metrics_run8.txt").read_text()
    restarted = metrics_text.replace(
        "process_start_time_seconds 1.79516856193e+09", "process_start_time_seconds 1.8e+09"
    )
    assert restarted != metrics_text
    async with metrics_of(metrics_text) as (url, current), player() as playing:
        endpoint = {
            "name": "vllm",
            "address": "127.0.0.1:1",
            "metrics": url,
            "events": playing.events,
            "replay": playing.replay,
        }
        async with serving({"endpoints": {"static": [endpoint]}}, tmp_path) as served:
            await playing.publish(*frames[:40])
            await served.until_applied("vllm", 39)
            await served.until_metric('kvatlas_capacity_blocks{endpoint="vllm",tier="gpu"} 64.0')
            playing.history[:] = [
                frame.parts for frame in frames[:60]
            ]  # a batch of the new life, with a higher number than the old one
            current[0] = restarted

            async def over() -> bool:
                publisher = (await row(served))["publishers"][0]
                return bool((publisher["epoch"], publisher["lastSeq"], publisher["trust"]) == (1, 59, "live"))

            await until(over, what="a publisher that started over")
    assert sum("starting over, its process start time changed" in line for line in served.log) == 1


@pytest.mark.slow
async def test_endpoint_without_events_is_known_from_routing(golden: Path, tmp_path: Path) -> None:
    """Use the block size and capacity from the metrics for the GPU tier, with full credit."""
    metrics_text = (golden / "metrics_run1.txt").read_text()
    async with metrics_of(metrics_text) as (url, _):
        endpoint = {"name": "vllm", "address": "127.0.0.1:1", "metrics": url, "events": ""}
        config = {"model": {"names": ["tiny"]}, "endpoints": {"static": [endpoint]}}
        async with serving(config, tmp_path) as served:

            async def bounded() -> bool:
                return (await row(served))["tiers"][0]["capacity"] is not None

            await until(bounded, what="the GPU capacity from /metrics")
            found = await row(served)
    assert (found["tiers"][0]["source"], found["publishers"][0]["blockSize"]) == ("routing", 32)
