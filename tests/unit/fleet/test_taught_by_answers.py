"""Recordings of engines, fed to a fleet with their metrics and their answers: what events do not tell is learned."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from kvatlas.configs.engines import ENGINES
from kvatlas.events.wire import decode_batch
from kvatlas.fleet.drafters import ENOUGH_AGAINST_GUESS
from kvatlas.fleet.scrape.report import ReportReader
from kvatlas.fleet.settings import tier_specs
from support.audited_engine import AuditedEndpoint
from support.engine_recordings import SGLANG, VLLM, Recorded
from support.fleets import make_config, make_fleet
from support.recording import read_frames, read_lines

CASES = [
    case
    for engine in (VLLM, SGLANG)
    for case in sorted(engine.iterdir())
    if case.is_dir() and case.name != "dp_ranks"  # answers of several ranks teach nothing
]
RESET_AFTER = 33
"""Request of `r1_reset` after which the engine emptied its CPU tier without an event."""

WRONG = {"e2_eagle_drop": 2, "e3_eagle_offload": 3, "r1_reset": 2}
"""Case -> most wrong predictions: until stores show a rule, and what nothing tells."""

TIERS = [
    {"name": "gpu", "media": ["GPU"]},
    {"name": "cpu", "media": ["CPU", "CPU_PINNED"]},
    {"name": "storage", "media": ["STORAGE"]},
]


async def wrong_requests(case: Path, *, metrics: str = "") -> list[int]:
    """Return the requests whose reuse was predicted wrong, each answer being fed in before the next request."""
    wrong, _ = await played(case, metrics=metrics)
    return wrong


async def played(case: Path, *, metrics: str = "", chunk: int | str = "auto") -> tuple[list[int], int | None]:
    """Return the wrong requests, and the chunk size that answers show if it is not the one in use."""
    frames, n_played = read_frames(case / "zmq.jsonl"), 0
    wrong: list[int] = []
    tiers = [TIERS[0], *(each | {"offloadChunkBlocks": chunk} for each in TIERS[1:])]
    config = make_config(tiers=tiers, predictions={"enabled": False})
    async with make_fleet(config, tiers=tier_specs(config.tiers)) as fleet:
        engine = AuditedEndpoint(fleet)
        body = (case / "metrics.txt").read_text() + metrics
        fleet.facts_changed("e", ReportReader(ENGINES).read(body.encode(), now=0.0).facts)
        for request in read_lines(case / "truth.jsonl", Recorded):
            while n_played < len(frames) and frames[n_played].received_at <= request.t0:
                engine.publish(decode_batch(frames[n_played].parts[2]))
                n_played += 1
            prefix = fleet.atlas.prefix(array("I", request.tokens), lora=request.lora, salt=request.salt)
            decision = engine.expect(prefix)
            found = decision.best.prefix
            if (found.usable_tokens if found else 0) != request.cached_tokens:
                wrong.append(request.i)
            while n_played < len(frames) and frames[n_played].received_at <= request.t1:
                engine.publish(decode_batch(frames[n_played].parts[2]))
                n_played += 1
            engine.audit(decision, cached_tokens=request.cached_tokens)
        return wrong, engine.endpoint.chunks.shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_answers_make_no_recording_worse(case: Path) -> None:
    wrong, chunk = await played(case)
    assert len(wrong) <= WRONG.get(case.name, 0), wrong
    assert chunk is None


async def test_configured_chunk_that_is_larger_than_the_engines_is_found() -> None:
    wrong, chunk = await played(VLLM / "o2_cpu_selfdesc", chunk=8)
    assert wrong
    assert chunk == 2


async def test_tier_that_was_emptied_without_an_event_is_believed_empty_after_one_answer() -> None:
    wrong = await wrong_requests(VLLM / "r1_reset")
    assert [each for each in wrong if each > RESET_AFTER] == [34], "of 34, 35, 36, 39, 40, 41, 42 and 46"


@pytest.mark.parametrize("case", ["e2_eagle_drop", "e3_eagle_offload"])
async def test_engine_whose_metrics_show_a_drafter_is_predicted_from_the_first_request(case: str) -> None:
    series = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 0.0\n'
    assert await wrong_requests(VLLM / case, metrics=series) == []


@pytest.mark.parametrize("case", ["g1_gpu_sessions", "o1_cpu_placeholder", "hy2_hybrid_offload"])
async def test_drafter_that_drops_nothing_is_known_by_two_answers(case: str) -> None:
    """The metrics are the same with n-gram drafters and draft models."""
    series = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 0.0\n'
    assert len(await wrong_requests(VLLM / case, metrics=series)) <= ENOUGH_AGAINST_GUESS


async def test_drafter_with_a_lookahead_drops_nothing() -> None:
    series = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 0.0\n'
    assert await wrong_requests(VLLM / "e1_eagle_lookahead", metrics=series) == []
