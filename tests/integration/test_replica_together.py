"""Real processes that decide as one: a new one knows what the others know, and all have one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.predictions import whole, wrong_answers
from support.recording import Player, player, read_frames, read_truth
from support.serve import Served, serving
from support.waiting import until

N_BEFORE, N_KEPT = 100, 10
"""Batches published before the second replica starts, and those that the engine still has for replay then."""


def config_of(playing: Player, folder: Path, name: str, *names: str) -> dict[str, Any]:
    addresses = {each: f"ipc://{folder / each}.mesh" for each in names}
    mesh = {"listen": addresses[name], "discover": {"list": [*addresses.values()]}}
    endpoint = {
        "name": "vllm",
        "address": "127.0.0.1:1",
        "metrics": "",
        "events": playing.events,
        "replay": playing.replay,
    }
    return {
        "model": {"names": ["tiny"]},
        "endpoints": {"static": [endpoint]},
        "replicas": {"transport": "mesh", "name": name, "mesh": mesh},
    }  # fmt: skip


def folder_of(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


async def checks(served: Served) -> dict[str, str]:
    """Return the state of the doctor's checks of replicas."""
    found = (await served.get("/v1/doctor"))["checks"]
    return {each["name"]: each["state"] for each in found if each["name"].startswith("replicas-")}


async def test_new_replica_knows_what_the_engine_has_forgotten_and_one_change_holds_on_both(
    golden: Path, tmp_path: Path
) -> None:
    messages = [frame.parts for frame in read_frames(golden / "run8_zmq.jsonl")][:N_BEFORE]
    requests = read_truth(golden / "run8_truth.jsonl")
    names = ("one", "two")
    async with (
        player() as playing,
        serving(config_of(playing, tmp_path, "one", *names), folder_of(tmp_path, "one")) as first,
    ):
        for parts in messages:
            await playing.send(parts)
        await first.until_applied("vllm", N_BEFORE - 1)
        del playing.history[:-N_KEPT]
        playing.asked.clear()
        second_config = config_of(playing, tmp_path, "two", *names)
        async with serving(second_config, folder_of(tmp_path, "two")) as second:
            await second.until_applied("vllm", N_BEFORE - 1)
            assert await wrong_answers(second, whole(messages), requests) == []
            (publisher,) = (await second.get("/v1/endpoints/vllm"))["publishers"]
            assert (publisher["trust"], publisher["counters"]["applied"]) == ("live", 0)
            assert set(playing.asked) == {N_BEFORE - 1}, "routine checks ask from there again"

            changed = await second.put("/v1/weights", {"queue": 5})
            assert [each["name"] for each in changed["replicas"]] == ["two", "one"]
            assert {each["generation"] for each in changed["replicas"]} == {changed["generation"]}
            weights = {each["name"]: each["weight"] for each in (await first.get("/v1/weights"))["weights"]}
            assert weights["queue"] == 5

            instance = {"instance_id": "x", "model": "m", "block_size": 16, "endpoint": "tcp://127.0.0.1:1"}
            await first.post("/register", instance)
            assert "x" in {each["instance_id"] for each in await second.get("/workers")}

            async def all_is_well() -> bool:
                return set((await checks(first)).values()) == {"ok"}

            await until(all_is_well, what="the doctor to find both")
            shown = await first.get("/v1/replicas")
            (other,) = shown["replicas"]
            assert (shown["name"], other["name"], other["state"]) == ("one", "two", "live")
            assert other["configuration"] == shown["configuration"]
        await first.until_logged("gave a snapshot to replica two")

        async def is_alone() -> bool:
            (gone,) = (await first.get("/v1/replicas"))["replicas"]
            return bool(gone["state"] == "silent")

        await until(is_alone, what="the leave of the other replica")
        changed = await first.put("/v1/weights", {"queue": 6})
        assert [each["name"] for each in changed["replicas"]] == ["one"]


async def test_replica_that_hears_nobody_starts_soon_and_the_doctor_says_so(tmp_path: Path) -> None:
    async with player() as playing:
        config = config_of(playing, tmp_path, "one", "one", "two")
        async with serving(config, folder_of(tmp_path, "one")) as served:
            assert (await checks(served))["replicas-heard"] == "warn"
            assert await served.status("/readyz") == 200
