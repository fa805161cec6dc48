"""A recording over real sockets with losses: once replay is done, no answer differs from that of a whole stream."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from kvatlas.events.wire import decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.recording import AnsweredRequest, Frame, player, read_frames, read_truth
from support.serve import Served, serving


def whole(frames: list[Frame]) -> Atlas:
    """The index of one that heard everything."""
    specs = [TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))]
    atlas = Atlas(tiers=TierTable(specs), seed=0, core=REFERENCE)
    atlas.add("vllm")
    for frame in frames:
        atlas.apply("vllm", 0, decode_batch(frame.parts[2]).events)
    return atlas


async def wrong_answers(served: Served, atlas: Atlas, requests: list[AnsweredRequest]) -> list[int]:
    wrong: list[int] = []
    for request in requests:
        lora = None if request.model == "tiny" else request.model
        prefix = Prefix(array("I", request.tokens), lora=lora, salt=request.salt)
        body = {"model": request.model, "token_ids": request.tokens, "cache_salt": request.salt}
        answer = (await served.post("/query", body))["default"]["vllm"]
        if answer["longest_matched"] != atlas.match(prefix)["vllm"].usable_tokens:
            wrong.append(request.i)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("n_before", [0, 150], ids=["from_the_start", "late_join"])
async def test_one_message_in_five_lost_leaves_no_wrong_answer(
    n_before: int, golden: Path, tmp_path: Path
) -> None:
    frames, requests = read_frames(golden / "run8_zmq.jsonl"), read_truth(golden / "run8_truth.jsonl")
    rng = random.Random(5)
    async with player() as playing:
        await playing.say(*frames[:n_before])
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
                    playing.history.append(frame.parts)  # published, and lost on the way
                else:
                    await playing.say(frame)
            await served.until_applied("vllm", frames[-1].seq)
            publisher = (await served.get("/v1/endpoints/vllm"))["publishers"][0]
            assert await wrong_answers(served, whole(frames), requests) == []
    assert (publisher["counters"]["lost"], publisher["counters"]["applied"]) == (0, len(frames))
    assert publisher["counters"]["gaps"] > 0
