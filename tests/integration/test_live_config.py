"""A configuration that changes under a running `kvatlas serve`: by file, by signal, by REST."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.app.app import App
from support.fleets import make_config
from support.recording import player, read_frames
from support.scraping import MetricsServer
from support.serve import ANY_PORTS, Served, config_text, serving
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow


def endpoint(name: str, number: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "address": f"127.0.0.1:{number}", "events": "", "metrics": "", **more}


def replace(file: Path, text: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(text)
    new.rename(file)


def in_place(file: Path, text: bytes) -> None:
    file.write_bytes(text)


async def scored(served: Served) -> tuple[int, list[str], dict[str, float]]:
    """Return generation, endpoints and weights of a decision."""
    answer = await served.post("/v1/score", {"model": "m", "token_ids": [1, 2, 3]})
    endpoints = answer["endpoints"]
    weights = {score["name"]: score["weight"] for score in endpoints[0]["scores"]}
    return answer["configGeneration"], [each["name"] for each in endpoints], weights


START: dict[str, Any] = {"endpoints": {"static": [endpoint("a", 1), endpoint("b", 2)]}}


@pytest.mark.parametrize("write", [in_place, replace])
async def test_changed_file_is_in_force_with_every_key_logged(
    write: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    async with serving(START, tmp_path) as served:
        assert (await scored(served))[:2] == (1, ["a", "b"])
        changed = {
            "endpoints": {"static": [endpoint("b", 2), endpoint("c", 3)]},
            "weights": {"queue": 7},
            "metricsScrape": {"interval": "1s"},
        }
        write(tmp_path / "kvatlas.yaml", config_text(changed))
        await served.until_generation(2)
        generation, names, weights = await scored(served)
        config = await served.get("/v1/config")
    assert (generation, names, weights["queue-scorer"]) == (2, ["b", "c"], 7.0)
    assert (config["generation"], config["config"]["metricsScrape"]["interval"]) == (2, "1s")
    for line in (
        "weights.queue: 2 -> 7",
        "metricsScrape.interval: '50ms' -> '1s'",
        "endpoints.static[a]: {name: 'a'",
    ):
        assert sum(line in logged for logged in served.log) == 1, line


async def test_file_that_the_flags_do_not_fit_is_refused_and_the_next_one_taken(tmp_path: Path) -> None:
    file, flags = tmp_path / "kvatlas.yaml", ("--refresh-metrics-interval", "5s")
    start = START | {"metricsScrape": {"staleAfter": "10s"}}
    async with serving(start, tmp_path, *flags) as served:
        replace(file, config_text(START | {"metricsScrape": {"staleAfter": "2s"}}))
        await served.until_logged("command line: with these flags, metricsScrape.staleAfter: found 2s")
        checks = {each["name"]: each["state"] for each in (await served.get("/v1/doctor"))["checks"]}
        replace(file, config_text(start | {"weights": {"queue": 7}}))
        await served.until_generation(2)
    assert checks["configuration-in-force"] == "fail"
    assert not any("a bug" in line for line in served.log)


async def test_config_map_is_followed_through_its_swapped_links(tmp_path: Path) -> None:
    """Lay out and update the file as the kubelet does."""

    def publish(version: str, text: bytes) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "kvatlas.yaml").write_bytes(text)
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish("1", config_text(START))
    (tmp_path / "kvatlas.yaml").symlink_to("..data/kvatlas.yaml")
    async with serving(START, tmp_path) as served:
        for version in (2, 3):
            publish(str(version), config_text(START | {"weights": {"queue": 10 + version}}))
            await served.until_generation(version)
            assert (await scored(served))[2]["queue-scorer"] == 10 + version


async def test_signal_takes_the_file_back_in_force(tmp_path: Path) -> None:
    async with serving(START, tmp_path) as served:
        answer = await served.put("/v1/weights", {"queue": 9, "gpuPrefixCache": 0})
        assert (answer["generation"], answer["weights"]["queue"]) == (2, 9)
        assert (await scored(served))[2]["queue-scorer"] == 9
        served.process.send_signal(signal.SIGHUP)
        await served.until_generation(3)
        _, _, weights = await scored(served)
        metrics = await served.metrics()
    assert (weights["queue-scorer"], weights["gpu-prefix-cache-scorer"]) == (2, 1)
    for source in ("rest", "signal"):
        assert f'kvatlas_config_loads_total{{outcome="applied",source="{source}"}} 1.0' in metrics


BAD = {
    "unknown_key": (b"weights: {queu: 1}", "did you mean 'queue'"),
    "impossible_value": (b"weights: {queue: -1}", "found -1, expected a number from 0 to 1000000000"),
    "no_yaml": (b"weights: {", "not valid YAML"),
    "endpoint_twice": (
        b"endpoints: {static: [{name: a, address: 'h:1'}, {name: a, address: 'h:2'}]}",
        "which is also the name at endpoints.static[0].name",
    ),
    "missing_list": (b"endpoints: {file: nowhere.yaml}", "nowhere.yaml: no such file"),
    "restart": (b"index: {hashSeed: 5}", "needs a restart: index.hashSeed: 0 -> 5"),
    "restart_and_more": (
        b"weights: {queue: 5}\ntiers: [{name: one}]",
        "needs a restart: tiers[gpu]: ",
    ),
}


async def test_bad_files_are_refused_whole_and_the_old_one_stays_in_force(tmp_path: Path) -> None:
    file = tmp_path / "kvatlas.yaml"
    async with serving(START, tmp_path) as served:
        before = await scored(served)
        for text, reason in BAD.values():
            replace(file, config_text({}) + text)
            await served.until_logged(reason)
            assert await scored(served) == before
            assert reason in (await served.get("/v1/config"))["refused"][str(file)]
        await served.until_metric("kvatlas_config_refused 1.0")
        answer = await served.put("/v1/weights", {"queue": "many"})
        assert answer["error"]["code"] == "BadRequest"
        replace(file, config_text(START | {"weights": {"queue": 3}}))
        await served.until_generation(2)
        await served.until_metric("kvatlas_config_refused 0.0")
    refusals = [line for line in served.log if "ERROR" in line]
    assert len(refusals) == len(BAD)
    assert all("configuration generation 1 stays in force: " in line for line in refusals)


async def test_capacity_and_trust_credit_apply_at_once(golden: Path, tmp_path: Path) -> None:
    frames = read_frames(golden / "run1_zmq.jsonl")[:20]
    async with player() as playing:
        follows = endpoint("a", 1, events=playing.events, replay=playing.replay)

        def config(bound: int | str, credit: float) -> dict[str, Any]:
            return {
                "endpoints": {"static": [follows]},
                "tiers": [{"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": bound}],
                "events": {"trustCredit": {"stale": credit}},
            }

        async with serving(config("auto", 0.5), tmp_path) as served:
            await playing.publish(*frames)
            await served.until_applied("a", frames[-1].seq)
            held = (await served.get("/v1/endpoints/a"))["tiers"][0]["residencies"]
            assert held > 3
            replace(tmp_path / "kvatlas.yaml", config_text(config(3, 0.125)))
            await served.until_generation(2)
            await served.until_metric('kvatlas_residencies{endpoint="a",tier="gpu"} 3.0')
            tier = (await served.get("/v1/endpoints/a"))["tiers"][0]
            credit = (await served.get("/v1/config"))["config"]["events"]["trustCredit"]["stale"]
            playing.close()
    assert (tier["capacity"], tier["residencies"], credit) == (3, 3, 0.125)


def own(*names: str) -> bytes:
    return msgspec.yaml.encode([{"name": name, "address": f"127.0.0.1:{ord(name)}"} for name in names])


def reference(*names: str) -> bytes:
    rows = [{"name": name, "address": "127.0.0.1", "port": str(ord(name))} for name in names]
    return msgspec.yaml.encode({"endpoints": rows})


@pytest.mark.parametrize("listed", [own, reference])
async def test_listed_servers_come_and_go_with_the_file(listed: Callable[..., bytes], tmp_path: Path) -> None:
    file = tmp_path / "servers.yaml"
    file.write_bytes(listed("a", "b"))
    async with serving({"endpoints": {"file": "servers.yaml"}}, tmp_path, ready=False) as served:
        assert (await scored(served))[:2] == (1, ["a", "b"])
        replace(file, listed("b", "c"))
        await served.until_generation(2)
        assert (await scored(served))[:2] == (2, ["b", "c"])
        replace(file, b"no list")
        await served.until_logged("servers.yaml: line 1: found 'no list'")
        file.unlink()
        await served.until_logged("servers.yaml: no such file")
        assert (await scored(served))[:2] == (2, ["b", "c"])


def picker_file(weight: float) -> bytes:
    """Return a file of the reference picker that finds its endpoints in another file."""
    discovery = {"type": "file-discovery", "name": "files", "parameters": {"path": "servers.yaml"}}
    profile = {"plugins": [{"pluginRef": "queue-scorer", "weight": weight}]}
    return msgspec.yaml.encode(
        {
            "apiVersion": "llm-d.ai/v1",
            "kind": "EndpointPickerConfig",
            "plugins": [discovery, {"type": "queue-scorer"}],
            "schedulingProfiles": [profile],
            "dataLayer": {"discovery": {"pluginRef": "files"}},
        }
    )


async def test_file_of_the_reference_picker_is_followed_with_the_endpoints_it_discovers(
    tmp_path: Path,
) -> None:
    picker, servers = tmp_path / "epp.yaml", tmp_path / "servers.yaml"
    picker.write_bytes(picker_file(2))
    servers.write_bytes(reference("a", "b"))
    async with serving({}, tmp_path, "--config-file", str(picker), ready=False) as served:
        assert await scored(served) == (1, ["a", "b"], {"queue-scorer": 2})
        replace(picker, picker_file(5))
        await served.until_generation(2)
        replace(servers, reference("c"))
        await served.until_generation(3)
        assert await scored(served) == (3, ["c"], {"queue-scorer": 5})
        answer = await served.put("/v1/weights", {"queue-scorer": 7})
        assert (answer["generation"], answer["weights"]) == (4, {"queue-scorer": 7})
        assert await scored(served) == (4, ["c"], {"queue-scorer": 7})


def open_files(served: Served) -> int:
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))


async def test_endpoint_that_goes_leaves_nothing_and_comes_back_empty(golden: Path, tmp_path: Path) -> None:
    frames = read_frames(golden / "run1_zmq.jsonl")[:20]
    async with player() as playing, MetricsServer() as load:
        await playing.publish(*frames)
        stays, goes = (
            endpoint(name, number, events=playing.events, replay=playing.replay, metrics=load.url)
            for name, number in (("b", 2), ("a", 1))
        )
        goes["events"] = goes["events"].replace("127.0.0.1", "localhost")  # addresses must be unique
        both, alone = {"endpoints": {"static": [goes, stays]}}, {"endpoints": {"static": [stays]}}
        file = tmp_path / "kvatlas.yaml"
        async with serving(alone, tmp_path) as served:
            await served.until_applied("b", frames[-1].seq)
            await served.until_metric('kvatlas_capacity_blocks{endpoint="b",tier="gpu"} 10.0')
            n_open, generation = open_files(served), 1
            for _ in range(3):
                replace(file, config_text(both))
                await served.until_generation(generation := generation + 1)
                await served.until_applied("a", frames[-1].seq)
                row = await served.get("/v1/endpoints/a")
                assert (row["publishers"][0]["epoch"], row["scrape"]["failing"]) == (0, False)
                replace(file, config_text(alone))
                await served.until_generation(generation := generation + 1)
                assert 'endpoint="a"' not in await served.metrics()
                assert await served.status("/v1/endpoints/a") == 404
                await until(lambda: open_files(served) <= n_open, what="closed sockets")
    assert not any("Traceback" in line for line in served.log)


async def test_moved_endpoint_starts_over_and_the_others_keep_their_blocks(
    golden: Path, tmp_path: Path
) -> None:
    frames = read_frames(golden / "run1_zmq.jsonl")[:20]
    async with player() as one, player() as other:

        def config(address: int) -> dict[str, Any]:
            rows = [
                endpoint("a", address, events=one.events, replay=one.replay),
                endpoint("b", 2, events=other.events, replay=other.replay),
            ]
            return {"endpoints": {"static": rows}}

        async with serving(config(1), tmp_path) as served:
            for name, playing in (("a", one), ("b", other)):
                await playing.publish(*frames)
                await served.until_applied(name, frames[-1].seq)
            before = await served.get("/v1/endpoints/b")
            one.history.clear()
            replace(tmp_path / "kvatlas.yaml", config_text(config(3)))
            await served.until_generation(2)
            moved, kept = await served.get("/v1/endpoints/a"), await served.get("/v1/endpoints/b")
    assert (moved["address"], moved["tiers"][0]["residencies"]) == ("127.0.0.1:3", 0)
    assert kept["tiers"] == before["tiers"]
    assert kept["tiers"][0]["residencies"] > 0
    assert kept["publishers"][0]["epoch"] == before["publishers"][0]["epoch"]


async def test_weights_that_are_set_while_endpoints_are_added_come_after_them() -> None:
    metrics = "http://127.0.0.1:1/metrics"
    static = [endpoint(f"e{number}", number, metrics=metrics) for number in range(1, 101)]
    app = App(make_config(server=ANY_PORTS, endpoints={"static": static}))
    starting = asyncio.create_task(app.start())
    try:
        while not len(app.fleet):  # noqa: ASYNC110 - the steps of the start have no signal
            await asyncio.sleep(0)
        assert len(app.fleet) < len(static), "the start is still in progress"
        await app.live.set_weights({"queue": 7})
        assert len(app.fleet) == len(static)
        await starting
        assert (app.live.generation, app.live.in_force.weights.queue) == (2, 7)
    finally:
        await asyncio.gather(starting, return_exceptions=True)
        await app.stop(grace_s=0)


async def test_signal_to_load_again_is_kept_while_the_process_starts(tmp_path: Path) -> None:
    pipe = tmp_path / "kvatlas.yaml"  # a process that reads it waits for this one to write
    os.mkfifo(pipe)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvatlas.app.cli.main", "serve", "--config", str(pipe)),
        "--watch-config-file=false",
        stderr=asyncio.subprocess.PIPE,
    )

    async def write(text: bytes, *, signalled: bool = False) -> None:
        opened: list[int] = []

        def is_awaited() -> bool:
            assert process.returncode is None, "the process has ended"
            with contextlib.suppress(OSError):  # nobody reads yet
                opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            return bool(opened)

        await until(is_awaited, what="a read of the file")
        pipe.unlink()
        os.mkfifo(pipe)  # another one for the next read: this one may not have ended by then
        if signalled:
            process.send_signal(signal.SIGHUP)
        os.write(opened[0], text)
        os.close(opened[0])

    assert process.stderr is not None
    await write(config_text(START), signalled=True)
    await write(config_text(START | {"weights": {"queue": 7}}))
    async with asyncio.timeout(PATIENCE_S):
        while b"weights.queue: 2 -> 7" not in await process.stderr.readline():
            assert not process.stderr.at_eof()
        process.terminate()
        await process.stderr.read()
        assert await process.wait() == 0


async def test_signal_to_end_is_kept_while_the_process_starts(tmp_path: Path) -> None:
    """The first process of a container would lose it."""
    pipe = tmp_path / "kvatlas.yaml"
    os.mkfifo(pipe)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvatlas.app.cli.main", "serve", "--config", str(pipe)
    )

    def write() -> None:
        with pipe.open("wb") as file:  # waits until the process reads
            process.send_signal(signal.SIGTERM)
            file.write(config_text(START))

    await asyncio.to_thread(write)
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 0
