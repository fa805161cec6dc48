"""`kvatlas serve` killed and started again: it restores its snapshot, and detects an engine that restarted meanwhile."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.engine_metrics import metrics_of
from support.predictions import whole, wrong_answers
from support.recording import Parts, Player, player, read_frames, read_truth
from support.serve import Served, serving
from support.waiting import until

SNAPSHOT = {"file": "kvatlas.snapshot", "interval": "50ms", "maxAge": "1h"}
N_BEFORE, N_AFTER = 100, 150
"""Batches published before and until after the process was away."""


def config_of(playing: Player, **more: Any) -> dict[str, Any]:
    endpoint = {
        "name": "vllm",
        "address": "127.0.0.1:1",
        "metrics": more.pop("metrics", ""),
        "events": playing.events,
        "replay": more.pop("replay", playing.replay),
    }
    return {"model": {"names": ["tiny"]}, "endpoints": {"static": [endpoint]}, "snapshot": SNAPSHOT} | more


async def publisher(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = (await served.get("/v1/endpoints/vllm"))["publishers"][0]
    return found


async def writes(served: Served) -> float:
    lines = (await served.metrics()).splitlines()
    return float(next(line for line in lines if line.startswith("kvatlas_snapshot_writes_total")).split()[-1])


async def until_written(served: Served) -> None:
    """Wait until a snapshot that was begun after now is complete."""
    target = await writes(served) + 2

    async def is_written() -> bool:
        return await writes(served) >= target

    await until(is_written, what="another snapshot")


async def learn(playing: Player, messages: Sequence[Parts], config: dict[str, Any], folder: Path) -> None:
    """Run a process that receives the messages and writes a snapshot."""
    async with serving(config, folder) as served:
        for parts in messages:
            await playing.send(parts)
        await served.until_applied("vllm", len(messages) - 1)
        await until_written(served)


def recorded(golden: Path) -> list[Parts]:
    return [frame.parts for frame in read_frames(golden / "run8_zmq.jsonl")]


def of_another_life(messages: Sequence[Parts]) -> list[Parts]:
    """Return the same batches, published a minute later by an engine that counts from 0 again."""
    reborn: list[Parts] = []
    for topic, seq, payload in messages:
        timestamp, *rest = msgspec.msgpack.decode(payload)
        reborn.append((topic, seq, msgspec.msgpack.encode([timestamp + 60, *rest])))
    return reborn


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
async def test_process_restores_its_state_and_fetches_only_missed_batches(
    end: signal.Signals, golden: Path, tmp_path: Path
) -> None:
    messages, requests = recorded(golden), read_truth(golden / "run8_truth.jsonl")
    async with player() as playing:
        config = config_of(playing)
        async with serving(config, tmp_path, end=end) as served:
            for parts in messages[:N_BEFORE]:
                await playing.send(parts)
            await served.until_applied("vllm", N_BEFORE - 1)
            if end == signal.SIGKILL:
                await until_written(served)
        playing.history += messages[N_BEFORE:N_AFTER]
        playing.asked.clear()
        async with serving(config, tmp_path) as served:
            await served.until_applied("vllm", N_AFTER - 1)
            row = await publisher(served)
            assert await wrong_answers(served, whole(messages[:N_AFTER]), requests) == []
            await playing.send(messages[N_AFTER])
            await served.until_applied("vllm", N_AFTER)
    assert playing.asked[0] == N_BEFORE - 1
    assert (row["counters"]["applied"], row["trust"], row["epoch"]) == (N_AFTER - N_BEFORE, "live", 0)
    assert sum("1 endpoint(s) restored with" in line for line in served.log) == 1


@pytest.mark.slow
async def test_idle_engine_is_verified_and_known_without_any_new_batch(golden: Path, tmp_path: Path) -> None:
    messages, requests = recorded(golden)[:N_BEFORE], read_truth(golden / "run8_truth.jsonl")
    async with player() as playing:
        config = config_of(playing)
        await learn(playing, messages, config, tmp_path)
        async with serving(config, tmp_path) as served:
            row = await publisher(served)
            assert await wrong_answers(served, whole(messages), requests) == []
    assert (row["trust"], row["lastSeq"], row["counters"]["applied"]) == ("live", N_BEFORE - 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("n_batches", [60, N_AFTER], ids=["behind_the_old_life", "beyond_the_old_life"])
async def test_engine_is_learned_again_when_it_restarted_meanwhile(
    n_batches: int, golden: Path, tmp_path: Path
) -> None:
    messages, requests = recorded(golden), read_truth(golden / "run8_truth.jsonl")
    async with player() as playing:
        config = config_of(playing)
        await learn(playing, messages[:N_BEFORE], config, tmp_path)
        playing.history[:] = of_another_life(messages[50 : 50 + n_batches])
        playing.history[:] = [
            (topic, number.to_bytes(8, "big"), payload)
            for number, (topic, _, payload) in enumerate(playing.history)
        ]
        async with serving(config, tmp_path) as served:
            await served.until_applied("vllm", n_batches - 1)
            row = await publisher(served)
            assert await wrong_answers(served, whole(playing.history), requests) == []
    assert (row["epoch"], row["trust"], row["counters"]["restarts"]) == (1, "live", 1)


@pytest.mark.slow
async def test_blocks_are_kept_at_lower_trust_when_the_history_was_cut(golden: Path, tmp_path: Path) -> None:
    messages, requests = recorded(golden), read_truth(golden / "run8_truth.jsonl")
    async with player() as playing:
        config = config_of(playing)
        await learn(playing, messages[:N_BEFORE], config, tmp_path)
        playing.history[:] = messages[N_BEFORE + 20 : N_AFTER]
        async with serving(config, tmp_path) as served:
            await served.until_applied("vllm", N_AFTER - 1)
            row = await publisher(served)
            known = whole([*messages[:N_BEFORE], *playing.history])
            assert await wrong_answers(served, known, requests) == []
    assert (row["trust"], row["counters"]["lost"], row["epoch"]) == ("partial", 20, 0)


@pytest.mark.slow
async def test_publisher_is_kept_at_lower_trust_when_it_cannot_replay(golden: Path, tmp_path: Path) -> None:
    messages, requests = recorded(golden)[:N_BEFORE], read_truth(golden / "run8_truth.jsonl")
    async with player() as playing:
        async with serving(
            config_of(playing), tmp_path
        ) as served:  # without replay, the first batches are missed
            for parts in messages:
                await playing.send(parts)
            await served.until_applied("vllm", N_BEFORE - 1)
        without = config_of(playing, replay="")
        async with serving(without, tmp_path) as served:
            assert (await publisher(served))["lastSeq"] is None, (
                "another replay address makes another publisher"
            )
            await served.until_logged("left out: vllm (its addresses changed)")
            await playing.send(messages[0])
            await served.until_applied("vllm", 0)
            for parts in messages[1:]:
                await playing.send(parts)
            await served.until_applied("vllm", N_BEFORE - 1)
            before = await publisher(served)
        async with serving(without, tmp_path) as served:

            async def is_connected() -> bool:
                return bool((await publisher(served))["trust"] == "partial")

            await until(is_connected, what="partial trust")
            assert await wrong_answers(served, whole(messages), requests) == []
            row = await publisher(served)
    assert (before["trust"], row["lastSeq"], row["counters"]["applied"]) == ("live", N_BEFORE - 1, 0)


@pytest.mark.slow
async def test_restart_is_detected_by_process_start_time_when_the_history_is_cut(
    golden: Path, tmp_path: Path
) -> None:
    messages = recorded(golden)
    metrics_text = (golden / "metrics_run8.txt").read_text()
    restarted = metrics_text.replace(
        "process_start_time_seconds 1.79516856193e+09", "process_start_time_seconds 1.8e+09"
    )
    assert restarted != metrics_text
    async with metrics_of(metrics_text) as (url, current), player() as playing:
        config = config_of(playing, metrics=url)
        async with serving(config, tmp_path) as served:
            for parts in messages[:N_BEFORE]:
                await playing.send(parts)
            await served.until_applied("vllm", N_BEFORE - 1)
            await served.until_metric('kvatlas_capacity_blocks{endpoint="vllm",tier="gpu"} 64.0')
            await until_written(served)
        current[0] = restarted
        playing.history[:] = of_another_life(messages[N_BEFORE + 20 : N_AFTER])
        async with serving(config, tmp_path) as served:
            await served.until_applied("vllm", N_AFTER - 1)

            async def is_reset() -> bool:
                row = await publisher(served)
                return (row["epoch"], row["lastSeq"]) == (1, N_AFTER - 1)

            await until(is_reset, what="a publisher that starts over")
    assert sum("starting over, its process start time changed" in line for line in served.log) == 1


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def of_format_99(data: bytes) -> bytes:
    return data[:8] + struct.pack("<I", 99) + data[12:]


def unchanged(data: bytes) -> bytes:
    return data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "damage", "changes"),
    [
        pytest.param("truncated", cut, {}, id="truncated"),
        pytest.param("checksum", flipped, {}, id="checksum"),
        pytest.param("version", of_format_99, {}, id="version"),
        pytest.param("seed", unchanged, {"index": {"hashSeed": 1}}, id="seed"),
        pytest.param("models", unchanged, {"model": {"names": ["tiny", "other"]}}, id="models"),
        pytest.param("tiers", unchanged, {"tiers": [{"name": "gpu", "media": ["GPU"]}]}, id="tiers"),
        pytest.param(
            "age", unchanged, {"snapshot": SNAPSHOT | {"interval": "1ms", "maxAge": "2ms"}}, id="age"
        ),
    ],
)
async def test_snapshot_that_cannot_be_used_is_refused_in_one_line_and_history_fetched(
    reason: str, damage: Callable[[bytes], bytes], changes: dict[str, Any], golden: Path, tmp_path: Path
) -> None:
    messages = recorded(golden)[:20]
    file = tmp_path / SNAPSHOT["file"]
    async with player() as playing:
        await learn(playing, messages, config_of(playing), tmp_path)
        file.write_bytes(damage(file.read_bytes()))
        playing.asked.clear()
        async with serving(config_of(playing) | changes, tmp_path) as served:
            await served.until_applied("vllm", 19)
            await served.until_metric(f'kvatlas_snapshot_refused_total{{reason="{reason}"}} 1.0')
            row = await publisher(served)
    assert (playing.asked[0], row["trust"], row["counters"]["applied"]) == (0, "live", 20)
    (line,) = [line for line in served.log if "WARNING" in line]
    assert f"snapshot {file} is not used ({reason}): " in line
