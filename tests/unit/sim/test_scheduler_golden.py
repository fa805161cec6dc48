"""For the same requests, vLLM 0.32 and the simulated engine publish the same events in the same batches."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.kv_events import Event
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler
from kvatlas.sim.sequence import Lora
from kvatlas.sim.service_times import ServiceTimes
from kvatlas.sim.storage_tier import StorageTier
from support.sim_steps import serve_to_end

BLOCK_SIZE = 32
LORA = Lora("tinylora", 1)

Plain = dict[str, Any]
"""One event as a map of plain values."""


def test_scheduler_publishes_as_vllm_when_given_run8(golden: Path) -> None:
    """GPU of 64 blocks, CPU tier of 128, chunks of one block, self-describing; 150 requests one after another."""
    scheduler = _scheduler(gpu_blocks=64, cpu_blocks=128, chunk_blocks=1, self_describing=True)
    truth = [json.loads(line) for line in _lines(golden, "run8_truth")]
    requests = [_request(row["tokens"], row["out_token_ids"], row["model"], row["salt"]) for row in truth]

    batches = [batch for request in requests for batch in serve_to_end(scheduler, request)]

    assert [request.cached_tokens for request in requests] == [row["cached_tokens"] for row in truth]
    _assert_same_batches(batches, _recorded(golden, "run8"))
    # vllm:prompt_tokens_cached_by_source_total of the same run, device and host, in metrics_run8.txt
    assert (scheduler.counters.gpu_hits, scheduler.counters.cpu_hits) == (11552, 8032)
    assert (scheduler.counters.gpu_queries, scheduler.counters.cpu_queries) == (38297, 26745)


@pytest.mark.parametrize(("run", "self_describing"), [("run3", False), ("run4", True)])
def test_scheduler_publishes_as_vllm_when_chunks_have_two_blocks(
    golden: Path, run: str, self_describing: bool
) -> None:
    """GPU of 48 blocks, CPU tier of 64; base, LoRA, salted and chat requests, and resets, one after another."""
    scheduler = _scheduler(gpu_blocks=48, cpu_blocks=64, chunk_blocks=2, self_describing=self_describing)
    recorded = _recorded(golden, run)

    batches = _replay(scheduler, golden, run, recorded)

    _assert_same_batches(batches, recorded)


def test_scheduler_publishes_as_vllm_when_storage_is_behind_the_cpu_tier(golden: Path) -> None:
    """GPU of 48 blocks, CPU tier of 64, a file system; a prompt is repeated that only storage has in full.

    Real copies take a varying number of steps, so the tiers are compared separately.
    """
    storage = StorageTier()
    scheduler = _scheduler(gpu_blocks=48, cpu_blocks=64, chunk_blocks=1, storage=storage)
    recorded = _recorded(golden, "run5")

    batches = _replay(scheduler, golden, "run5", recorded)

    simulated: list[Plain] = msgspec.msgpack.decode(msgspec.msgpack.encode(sum(batches, ())))
    real = [event for batch in recorded for event in batch]
    real_of: dict[int, Any] = {}
    _learn_hashes(real_of, simulated, real)
    for medium in ("GPU", "CPU", "STORAGE"):
        ours = [_with_real_hashes(real_of, event) for event in simulated if event.get("medium") == medium]
        assert _history(ours) == _history([event for event in real if event.get("medium") == medium])
    assert (scheduler.counters.storage_hits, len(storage)) == (9 * BLOCK_SIZE, len(_stores(real, "STORAGE")))


def _scheduler(**cache: Any) -> Scheduler:
    """Make a scheduler whose copies to the CPU tier take one step, as on the recorded server with its small model."""
    times = ServiceTimes(store_s_per_token=0.0)
    return Scheduler(BlockCache(block_size=BLOCK_SIZE, **cache), times=times, max_num_seqs=4)


def _replay(
    scheduler: Scheduler, golden: Path, run: str, recorded: list[list[Plain]]
) -> list[tuple[Event, ...]]:
    """Send the requests and resets of a run to the engine, and return the batches that it publishes."""
    batches: list[tuple[Event, ...]] = []
    for row in map(json.loads, _lines(golden, f"{run}_requests")):
        if row.get("path", "").startswith("/reset_prefix_cache"):
            assert scheduler.reset_cache(cpu="reset_external=true" in row["path"])
        elif "path" in row:
            output = _output(row, recorded)
            request = _request(row["tokens"], output, row["body"]["model"], row["body"].get("cache_salt"))
            batches += serve_to_end(scheduler, request)
    return batches


def _history(events: list[Plain]) -> list[tuple[str, list[Any]]]:
    """List the changes of one tier: hashes of successive events of the same kind together, those of stores sorted."""
    runs = [
        (kind, [key for event in group for key in event["block_hashes"]])
        for kind, group in groupby(events, key=lambda event: event["type"])
    ]
    return [(kind, sorted(keys) if kind == "BlockStored" else keys) for kind, keys in runs]


def _request(tokens: list[int], output: list[int], model: str, salt: str | None) -> Request:
    lora = LORA if model == LORA.name else None
    return Request("0", array("I", tokens), array("I", output), lora=lora, salt=salt)


def _lines(golden: Path, name: str) -> list[str]:
    return (golden / f"{name}.jsonl").read_text().splitlines()


def _recorded(golden: Path, run: str) -> list[list[Plain]]:
    frames = [json.loads(line)["frames"] for line in _lines(golden, f"{run}_zmq")]
    return [msgspec.msgpack.decode(base64.b64decode(parts[2]))[1] for parts in frames]


def _output(row: Plain, recorded: list[list[Plain]]) -> list[int]:
    """Return the generated tokens that appear in events: those of full blocks."""
    prompt: list[int] = row["tokens"]
    tail = prompt[len(prompt) // BLOCK_SIZE * BLOCK_SIZE :]
    output: list[int] = []
    parent: int | None = None
    for event in (event for batch in recorded for event in _stores(batch, "GPU")):
        tokens: list[int] = event["token_ids"]
        if output and event["parent_block_hash"] == parent:
            output += tokens
        elif not output and tail and tokens[: len(tail)] == tail:
            output = tokens[len(tail) :]
        else:
            continue
        parent = event["block_hashes"][-1]
    n_tokens: int = row["body"]["max_tokens"]
    return (output + [0] * n_tokens)[:n_tokens]


def _assert_same_batches(simulated: list[tuple[Event, ...]], recorded: list[list[Plain]]) -> None:
    """Check that the batches are equal except for the hash function: simulated and real hashes correspond one to one."""
    assert len(simulated) == len(recorded)
    real_of: dict[int, int] = {}
    for number, (ours, theirs) in enumerate(zip(simulated, recorded, strict=True)):
        plain: list[Plain] = msgspec.msgpack.decode(msgspec.msgpack.encode(ours))
        _learn_hashes(real_of, plain, theirs)
        assert _in_order(_with_real_hashes(real_of, event) for event in plain) == _in_order(theirs), number
    assert len(set(real_of.values())) == len(real_of)


def _learn_hashes(real_of: dict[int, int], ours: list[Plain], theirs: list[Plain]) -> None:
    """Record the hashes of blocks that the GPU stores; later events must use the same."""
    for event, real in zip(_stores(ours, "GPU"), _stores(theirs, "GPU"), strict=True):
        for key, real_key in zip(event["block_hashes"], real["block_hashes"], strict=True):
            real_of.setdefault(key, real_key)


def _with_real_hashes(real_of: dict[int, int], event: Plain) -> Plain:
    if event["type"] == "AllBlocksCleared":
        return event
    parent = event.get("parent_block_hash")
    translated = dict(event, block_hashes=[real_of[key] for key in event["block_hashes"]])
    return translated if parent is None else dict(translated, parent_block_hash=real_of[parent])


def _in_order(events: Iterable[Plain]) -> list[Plain]:
    """Sort the stores in the CPU tier, which have no defined order and come last."""
    events = list(events)
    cpu_stores = _stores(events, "CPU")
    others = [event for event in events if event not in cpu_stores]
    return others + sorted(cpu_stores, key=lambda event: event["block_hashes"])


def _stores(events: list[Plain], medium: str) -> list[Plain]:
    return [event for event in events if event["type"] == "BlockStored" and event["medium"] == medium]
