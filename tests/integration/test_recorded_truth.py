"""A real vLLM's events over real ZMQ into `kvatlas serve`; `/query` must equal the cached tokens vLLM reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.recording import Player, player, read_frames, read_truth
from support.serve import Served, serving


def config_for(playing: Player) -> dict[str, Any]:
    endpoint = {
        "name": "vllm",
        "address": "127.0.0.1:1",
        "metrics": "",
        "events": playing.events,
        "replay": playing.replay,
    }
    return {"model": {"names": ["tiny"]}, "endpoints": {"static": [endpoint]}}


async def publisher(served: Served) -> dict[str, Any]:
    rows: list[dict[str, Any]] = (await served.get("/v1/endpoints/vllm"))["publishers"]
    return rows[0]


@pytest.mark.slow
async def test_query_equals_cached_tokens_for_every_recorded_request(golden: Path, tmp_path: Path) -> None:
    frames = read_frames(golden / "run8_zmq.jsonl")
    truth = read_truth(golden / "run8_truth.jsonl")
    answers: list[tuple[int, int, int]] = []
    async with player() as playing, serving(config_for(playing), tmp_path) as served:
        played = 0
        for request in truth:
            due = [f for f in frames[played:] if f.received_at <= request.t0]
            await playing.publish(*due)
            played += len(due)
            if played:
                await served.until_applied("vllm", frames[played - 1].seq)
            body = {"model": request.model, "token_ids": request.tokens, "cache_salt": request.salt}
            instance = (await served.post("/query", body))["default"]["vllm"]
            answers.append((request.i, instance["longest_matched"], request.cached_tokens))
        counters = (await publisher(served))["counters"]
    assert len(answers) == 150
    assert [row for row in answers if row[1] != row[2]] == []
    assert sum(cached > 0 for _, _, cached in answers) > 50, "the recording has many cache hits"
    assert counters["unknown_removals"] == counters["pending"] == counters["parked"] == counters["lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("run", ["run1", "run4"])
async def test_recording_is_taken_without_a_single_error(run: str, golden: Path, tmp_path: Path) -> None:
    frames = read_frames(golden / f"{run}_zmq.jsonl")
    async with player() as playing, serving(config_for(playing), tmp_path) as served:
        await playing.publish(*frames)
        await served.until_applied("vllm", frames[-1].seq)
        rows = await publisher(served)
        metrics = await served.metrics()
    assert (rows["trust"], rows["counters"]["applied"]) == ("live", len(frames))
    errors = (
        "unknown_removals",
        "block_size_mismatches",
        "ignored_groups",
        "pending_dropped",
        "pending",
        "parked",
        "lost",
    )
    assert {name: rows["counters"][name] for name in errors} == dict.fromkeys(errors, 0)
    assert "kvatlas_events_rejected_total{" not in metrics
