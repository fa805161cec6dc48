"""A recording over real sockets with losses: after replay, every answer equals that of a complete stream."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.predictions import whole, wrong_answers
from support.recording import player, read_frames, read_truth
from support.serve import serving


@pytest.mark.slow
@pytest.mark.parametrize("n_before", [0, 150], ids=["from_the_start", "late_join"])
async def test_one_message_in_five_lost_leaves_no_wrong_answer(
    n_before: int, golden: Path, tmp_path: Path
) -> None:
    frames, requests = read_frames(golden / "run8_zmq.jsonl"), read_truth(golden / "run8_truth.jsonl")
    rng = random.Random(5)
    async with player() as playing:
        await playing.publish(*frames[:n_before])
        endpoint = {
            "name": "vllm",
            "address": "127.0.0.1:1",
            "metrics": "",
            "events": playing.events,
            "replay": playing.replay,
        }
        config = {"model": {"names": ["tiny"]}, "endpoints": {"static": [endpoint]}}
        async with serving(config, tmp_path) as served:
            for frame in frames[n_before:]:
                if rng.random() < 0.2:
                    playing.history.append(frame.parts)  # published, but lost
                else:
                    await playing.publish(frame)
            await served.until_applied("vllm", frames[-1].seq)
            publisher = (await served.get("/v1/endpoints/vllm"))["publishers"][0]
            assert await wrong_answers(served, whole(frame.parts for frame in frames), requests) == []
    assert (publisher["counters"]["lost"], publisher["counters"]["applied"]) == (0, len(frames))
    assert publisher["counters"]["gaps"] > 0
