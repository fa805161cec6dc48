"""Mixed traffic with faults through a real Envoy, for as long as one likes; ends with status 1 when something is left behind.

Use: python -m bench.soak [--minutes 10] [--clients 12]          (or: make soak)

Simulated engines, `kvatlas serve` and Envoy run side by side. Clients send chats with and without streaming, token ids, bodies
of megabytes, bad and odd requests, and leave at any moment; engines start again, the configuration is loaded again, and peers
of kvatlas's own port break the protocol. At the end nothing may be in flight or held, streams and requests must add up to what
Envoy counted, no request may have been answered 500, and memory and open files must have stayed where they were.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import re
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import yaml

from kvatlas.api.extproc.health import EXT_PROC_SERVICE
from kvatlas.sim.demo import servers
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.kvatlas_process import KVAtlasProcess
from kvatlas.sim.model_text import TokenizerText

HOST = "127.0.0.1"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
N_PROMPTS = 200
"""Different prompts; memory of text and blocks seen before is full after a while, whatever its bound."""

SAMPLE_S = 1.0
FAULT_S = 3.0
QUIET_S = 60.0
"""How long what is in flight may take to end after the last request."""

GROWTH, GROWTH_BYTES, MORE_FILES = 0.05, 16 * 2**20, 8
"""By how much memory may be larger in the last quarter than in the second, and how many more files may be open."""

ANSWERS = frozenset(
    {"200", "400", "404", "412", "503 connection termination", "503 remote connection failure", "504"}
)
"""What clients may hear; 503 with these words of Envoy is for requests under way on an engine that dies."""


@dataclass
class Rig:
    """Everything that runs."""

    rng: random.Random
    fleet: Fleet
    kvatlas: KVAtlasProcess
    client: aiohttp.ClientSession
    rest: aiohttp.ClientSession
    channel: grpc.aio.Channel
    envoy: EnvoyProcess
    answers: Counter[str] = field(default_factory=Counter[str])
    n_direct: int = 0
    """Streams that did not come through Envoy."""
    n_leavers: int = 0
    """Requests and streams whose client may have left before anybody read of them."""

    def chat(self, **more: object) -> dict[str, object]:
        """A chat about one of the subjects that there are."""
        number = self.rng.randrange(N_PROMPTS)
        text = f"Subject {number}. " + f"The quick brown fox number {number} jumps over the lazy dog. " * 40
        return {"model": MODEL_NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


@contextlib.asynccontextmanager
async def running(folder: Path, seed: int) -> AsyncGenerator[Rig]:
    """The rig."""
    write_demo_model(folder / "model")
    file = folder / "kvatlas.yaml"
    async with contextlib.AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(servers(), TokenizerText(folder / "model")))
        listener = f"{HOST}:0"
        fleet.write_kvatlas_config(file, tokenizer=folder / "model", ext_proc=listener, rest=listener)
        config = yaml.safe_load(file.read_text())
        # little enough that it is full long before the end
        config |= {"tokenization": {"cacheMebibytes": 4}, "extProc": {"fallbackEndpoints": 1}}
        file.write_text(yaml.safe_dump(config))
        kvatlas = KVAtlasProcess(file, log=folder / "kvatlas.log")
        await stack.enter_async_context(kvatlas)
        picker = kvatlas.addresses["extProc"]
        gateway = gateway_config(
            "duplex", gateway=(HOST, 0), admin=(HOST, 0), picker=picker, servers=fleet.addresses
        )
        envoy = await stack.enter_async_context(EnvoyProcess(gateway, binary=find_envoy()))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(envoy.gateway_url, timeout=aiohttp.ClientTimeout(60))
        )
        channel = await stack.enter_async_context(grpc.aio.insecure_channel("{}:{}".format(*picker)))
        session = await stack.enter_async_context(aiohttp.ClientSession(kvatlas.rest_url))
        yield Rig(random.Random(seed), fleet, kvatlas, client, session, channel, envoy)


async def heard(asked: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> str:
    """The status of an answer that was read to its end; of a 503 with why, as Envoy or kvatlas says."""
    async with asked as answer:
        text = await answer.text(errors="replace")
        if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
            return f"{answer.status}"
        reason = text.rpartition("reset reason: ")[2].partition(",")[0].strip()
        return f"503 {reason[:100]}"


async def whole(rig: Rig) -> str:
    """A chat answered in one piece."""
    return await heard(rig.client.post(CHAT, json=rig.chat()))


async def streamed(rig: Rig) -> str:
    """A chat answered token by token."""
    body = rig.chat(stream=True, stream_options={"include_usage": True})
    return await heard(rig.client.post(CHAT, json=body))


async def leaves_early(rig: Rig) -> str:
    """A client that goes away while its answer comes, or before."""
    rig.n_leavers += 1
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(rig.rng.random() * 0.1),
            rig.client.post(CHAT, json=rig.chat(stream=True, max_tokens=200)) as answer,
        ):
            await answer.content.readline()
            answer.close()
    return "200"


async def token_ids(rig: Rig) -> str:
    """Token ids, with a wish for a cached prefix now and then."""
    headers = {"prefer": "if-available"} if rig.rng.random() < 0.3 else {}
    start = rig.rng.randrange(N_PROMPTS)
    body = {"model": MODEL_NAME, "prompt": list(range(start, start + 400)), "max_tokens": 4}
    return await heard(rig.client.post(COMPLETIONS, json=body, headers=headers))


async def large(rig: Rig) -> str:
    """A body of some megabytes that no engine takes for a prompt."""
    data = json.dumps(rig.chat(user="x" * rig.rng.randrange(1_000_000, 3_000_000))).encode()
    return await heard(rig.client.post("/elsewhere", data=data))


async def bad(rig: Rig) -> str:
    """What is refused."""
    data = rig.rng.choice([b"{", b"{}", b"[]", b'{"model":"m"}', b"\xff\xfe"])
    return await heard(rig.client.post(CHAT, data=data))


async def bare(rig: Rig) -> str:
    """A request without body."""
    return await heard(rig.client.get("/v1/models"))


KINDS: Mapping[Callable[[Rig], Awaitable[str]], int] = {
    whole: 6, streamed: 6, leaves_early: 4, token_ids: 4, large: 1, bad: 2, bare: 2,
}  # fmt: skip
"""Kind of request -> how often beside the others."""


async def keep_asking(rig: Rig, until: float) -> None:
    """One client, until that time."""
    while time.monotonic() < until:
        (kind,) = rig.rng.choices(list(KINDS), list(KINDS.values()))
        try:
            rig.answers[await kind(rig)] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            rig.answers[type(error).__name__] += 1


async def engine_starts_again(rig: Rig) -> None:
    """An engine dies with all its requests, and comes back empty."""
    server = rig.rng.choice(rig.fleet.servers)
    await server.stop()
    await asyncio.sleep(0.5)
    await server.start()


async def configuration_is_loaded_again(rig: Rig) -> None:
    """The signal for that."""
    os.kill(rig.kvatlas.pid, signal.SIGHUP)


async def peer_breaks_the_protocol(rig: Rig) -> None:
    """Streams of anything, some of which end in the middle."""
    process: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = rig.channel.stream_stream(
        f"/{EXT_PROC_SERVICE}/Process"
    )
    for _ in range(20):
        call = process()
        rig.n_direct += 1
        rig.n_leavers += 1
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(rig.rng.randrange(4)):
                await call.write(rig.rng.randbytes(rig.rng.choice([0, 10, 100_000])))
            if rig.rng.random() < 0.5:
                await call.done_writing()
                await call.code()
        call.cancel()


async def operator_looks(rig: Rig) -> None:
    """Reads over REST."""
    for path in ("/v1/endpoints", "/v1/decisions", "/v1/index", "/metrics"):
        async with rig.rest.get(path) as answer:
            await answer.read()


FAULTS = (engine_starts_again, configuration_is_loaded_again, peer_breaks_the_protocol, operator_looks)


async def keep_failing(rig: Rig, until: float) -> None:
    """One fault after the other, until that time."""
    while time.monotonic() < until:
        rig.kvatlas.check()
        await rig.rng.choice(FAULTS)(rig)
        await asyncio.sleep(FAULT_S)


async def samples(rig: Rig) -> dict[str, float]:
    """All of kvatlas's metrics."""
    async with rig.rest.get("/metrics") as answer:
        text = await answer.text()
    found = re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def total(metrics: Mapping[str, float], name: str) -> float:
    """Sum of the series of one metric."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


async def keep_sampling(rig: Rig, until: float, memory: list[float], files: list[float]) -> None:
    """Memory and open files once in a while, until that time."""
    while time.monotonic() < until:
        metrics = await samples(rig)
        memory.append(metrics["process_resident_memory_bytes"])
        files.append(metrics["process_open_fds"])
        await asyncio.sleep(SAMPLE_S)


LEFT = ("kvatlas_in_flight_requests", "kvatlas_in_flight_tokens", "kvatlas_open_streams",
        "kvatlas_pending_requests", "kvatlas_held_bytes")  # fmt: skip


async def left_behind(rig: Rig) -> list[str]:
    """What is still there once everything had time to end."""
    end = time.monotonic() + QUIET_S
    while True:
        metrics = await samples(rig)
        left = [f"{name} is {total(metrics, name):g}" for name in LEFT if total(metrics, name)]
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(0.5)


async def miscounted(rig: Rig) -> list[str]:
    """Counters that do not add up."""
    metrics = await samples(rig)
    async with rig.client.get(
        f"{rig.envoy.admin_url}/stats", params={"filter": "ext_proc.streams_started"}
    ) as answer:
        found = re.search(r"streams_started: (\d+)", await answer.text())
    n_streams = (int(found[1]) if found else 0) + rig.n_direct
    outcomes = {
        key.partition('outcome="')[2].rstrip('"}'): value
        for key, value in metrics.items()
        if key.startswith("kvatlas_requests_total{")
    }
    decided = total(metrics, "kvatlas_picks_total") + total(metrics, "kvatlas_refusals_total")
    print(f"{n_streams} streams, {decided:.0f} decided, ended: {outcomes}")
    told = sum(outcomes.values())
    problems: list[str] = []
    # A stream that is cancelled before its first message is read need not have reached the service.
    if not n_streams - rig.n_leavers <= told <= n_streams:
        problems.append(f"{told:.0f} requests were told to have ended, of {n_streams} streams")
    if decided > told or decided < told - outcomes.get("aborted", 0.0):
        problems.append(f"{decided:.0f} decisions do not fit {outcomes}")
    return problems


def grown(memory: list[float], files: list[float]) -> list[str]:
    """What became more."""
    quarter = len(memory) // 4
    if not quarter:
        return ["the run is too short to tell whether memory grows"]
    medians = [statistics.median(memory[start : start + quarter]) for start in range(0, 4 * quarter, quarter)]
    print("memory by quarters:", ", ".join(f"{each / 2**20:.0f}" for each in medians), "MiB")
    _, before, _, after = medians
    problems: list[str] = []
    if after > before * (1 + GROWTH) + GROWTH_BYTES:
        problems.append(f"memory grew from {before / 2**20:.0f} to {after / 2**20:.0f} MiB")
    if statistics.median(files[-quarter:]) > statistics.median(files[quarter : 2 * quarter]) + MORE_FILES:
        problems.append(f"open files grew to {files[-1]:.0f}")
    return problems


async def soak(minutes: float, n_clients: int, seed: int) -> list[str]:
    """Everything that went wrong."""
    with tempfile.TemporaryDirectory(prefix="kvatlas-soak-") as folder:
        async with running(Path(folder), seed) as rig:
            until = time.monotonic() + minutes * 60
            memory: list[float] = []
            files: list[float] = []
            await asyncio.gather(
                *(keep_asking(rig, until) for _ in range(n_clients)),
                keep_failing(rig, until),
                keep_sampling(rig, until, memory, files),
            )
            print(f"{sum(rig.answers.values())} requests: {dict(rig.answers)}")
            unexpected = [each for each in rig.answers if each[0].isdigit() and each not in ANSWERS]
            problems = [f"{rig.answers[each]} requests were answered {each}" for each in unexpected]
            problems += await left_behind(rig)
            return problems + await miscounted(rig) + grown(memory, files)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long (10)")
    parser.add_argument("--clients", type=int, default=12, help="clients at once (12)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is left to chance (1)")
    options = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(
        logging.CRITICAL
    )  # it tells of every client that leaves an engine
    problems = asyncio.run(soak(options.minutes, options.clients, options.seed))
    for problem in problems:
        print(f"not good: {problem}")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
