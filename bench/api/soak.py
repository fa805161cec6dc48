"""Mixed traffic with faults through a real Envoy; fails if anything is left behind.

Simulated engines, `kvatlas serve` and Envoy run side by side. Clients send chats with and without streaming, token ids, bodies
of megabytes, bad, odd and hostile requests, and leave at any moment; engines restart, one publishes hostile events, the
configuration is reloaded, and peers of kvatlas's own ports break the protocols. At the end nothing may be in flight or held, streams and requests must add up to what
Envoy counted, no request may have been answered 500, no task may have failed, and memory and open files must have stayed where they were. Ends with
status 1 if not. `make soak` runs it.
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
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
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

from ..common.benchmark import Benchmark
from ..common.tables import Table
from .soak_hostile import MadEngine, half_requests, inputs, send_bodies, send_frames
from .soak_memory import grown

HOST = "127.0.0.1"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
N_PROMPTS = 200
"""Different prompts; caches of text and blocks are full after a while, whatever their bound."""

SAMPLE_S = 1.0
FAULT_S = 1.0
QUIET_S = 60.0
"""Time for requests in flight to end after the last request."""

ANSWERS = frozenset(
    {"200", "400", "404", "412", "503 connection termination", "503 remote connection failure", "504"}
)
"""Allowed responses; 503 with these words of Envoy is for requests in flight on an engine that dies."""


@dataclass
class Rig:
    """All processes, and the clients' connections to them."""

    rng: random.Random
    fleet: Fleet
    kvatlas: KVAtlasProcess
    client: aiohttp.ClientSession
    rest: aiohttp.ClientSession
    channel: grpc.aio.Channel
    envoy: EnvoyProcess
    bodies: Iterator[tuple[str, bytes]]
    mad: MadEngine
    answers: Counter[str] = field(default_factory=Counter[str])
    n_direct: int = 0
    """Streams that did not come through Envoy."""
    n_leavers: int = 0
    """Requests and streams whose client may have left before anything was read from them."""

    def chat(self, **more: object) -> dict[str, object]:
        """Return a chat about one of the subjects."""
        number = self.rng.randrange(N_PROMPTS)
        text = f"Subject {number}. " + f"The quick brown fox number {number} jumps over the lazy dog. " * 40
        return {"model": MODEL_NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


@contextlib.asynccontextmanager
async def running(folder: Path, seed: int) -> AsyncGenerator[Rig]:
    """Start everything; yields the rig."""
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
        mad = MadEngine(session, seed)
        stack.callback(mad.close)
        await mad.register()
        bodies = inputs("bodies", seed)
        yield Rig(random.Random(seed), fleet, kvatlas, client, session, channel, envoy, bodies, mad)


async def status_of(asked: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> str:
    """Read a response to its end; returns its status, for 503 with the reason that Envoy or kvatlas gives."""
    async with asked as answer:
        text = await answer.text(errors="replace")
        if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
            return f"{answer.status}"
        reason = text.rpartition("reset reason: ")[2].partition(",")[0].strip()
        return f"503 {reason[:100]}"


async def whole(rig: Rig) -> str:
    """Send a chat that is answered in one piece."""
    return await status_of(rig.client.post(CHAT, json=rig.chat()))


async def streamed(rig: Rig) -> str:
    """Send a chat that is answered token by token."""
    body = rig.chat(stream=True, stream_options={"include_usage": True})
    return await status_of(rig.client.post(CHAT, json=body))


async def leaves_early(rig: Rig) -> str:
    """Send a chat, and leave while the response comes, or before."""
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
    """Send token ids, sometimes with a wish for a cached prefix."""
    headers = {"prefer": "if-available"} if rig.rng.random() < 0.3 else {}
    start = rig.rng.randrange(N_PROMPTS)
    body = {"model": MODEL_NAME, "prompt": list(range(start, start + 400)), "max_tokens": 4}
    return await status_of(rig.client.post(COMPLETIONS, json=body, headers=headers))


async def large(rig: Rig) -> str:
    """Send a body of some megabytes that no engine takes for a prompt."""
    data = json.dumps(rig.chat(user="x" * rig.rng.randrange(1_000_000, 3_000_000))).encode()
    return await status_of(rig.client.post("/elsewhere", data=data))


async def bad(rig: Rig) -> str:
    """Send a body that is refused."""
    data = rig.rng.choice([b"{", b"{}", b"[]", b'{"model":"m"}', b"\xff\xfe"])
    return await status_of(rig.client.post(CHAT, data=data))


async def bare(rig: Rig) -> str:
    """Send a request without body."""
    return await status_of(rig.client.get("/v1/models"))


KINDS: Mapping[Callable[[Rig], Awaitable[str]], int] = {
    whole: 6, streamed: 6, leaves_early: 4, token_ids: 4, large: 1, bad: 2, bare: 2,
}  # fmt: skip
"""Kind of request -> its weight among all."""


async def keep_sending(rig: Rig, until: float) -> None:
    """Send one request after the other, until that time."""
    while time.monotonic() < until:
        (kind,) = rig.rng.choices(list(KINDS), list(KINDS.values()))
        try:
            rig.answers[await kind(rig)] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            rig.answers[type(error).__name__] += 1


async def engine_starts_again(rig: Rig) -> None:
    """Stop an engine with all its requests, and start it again, empty."""
    server = rig.rng.choice(rig.fleet.servers)
    await server.stop()
    await asyncio.sleep(0.5)
    await server.start()


async def configuration_is_loaded_again(rig: Rig) -> None:
    """Send kvatlas the signal to reload its configuration."""
    os.kill(rig.kvatlas.pid, signal.SIGHUP)


async def peer_breaks_the_protocol(rig: Rig) -> None:
    """Send random bytes on streams, some of which end in the middle."""
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
    """Read over REST."""
    for path in ("/v1/endpoints", "/v1/decisions", "/v1/index", "/metrics"):
        async with rig.rest.get(path) as answer:
            await answer.read()


async def clients_are_hostile(rig: Rig) -> None:
    """Send hostile bodies through Envoy."""
    rig.n_leavers += await send_bodies(rig.client, rig.bodies)


async def engine_is_mad(rig: Rig) -> None:
    """Publish hostile events."""
    await rig.mad.publish()


async def peers_are_hostile(rig: Rig) -> None:
    """Send broken HTTP/2 and half requests."""
    await send_frames(rig.kvatlas.addresses["extProc"], rig.rng)
    await half_requests(rig.kvatlas.addresses["rest"], rig.rng)


FAULTS = (
    engine_starts_again, configuration_is_loaded_again, peer_breaks_the_protocol, operator_looks, clients_are_hostile,
    engine_is_mad, peers_are_hostile,
)  # fmt: skip


async def keep_failing(rig: Rig, until: float) -> None:
    """Cause one fault after the other, until that time."""
    while time.monotonic() < until:
        rig.kvatlas.check()
        await rig.rng.choice(FAULTS)(rig)
        await asyncio.sleep(FAULT_S)


async def samples(rig: Rig) -> dict[str, float]:
    """Return all of kvatlas's metrics."""
    async with rig.rest.get("/metrics") as answer:
        text = await answer.text()
    found = re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def total(metrics: Mapping[str, float], name: str) -> float:
    """Return the sum of the series of one metric."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


async def keep_sampling(rig: Rig, until: float, memory: list[float], files: list[float]) -> None:
    """Sample memory and open files every second, until that time."""
    while time.monotonic() < until:
        metrics = await samples(rig)
        memory.append(metrics["process_resident_memory_bytes"])
        files.append(metrics["process_open_fds"])
        await asyncio.sleep(SAMPLE_S)


LEFT = ("kvatlas_in_flight_requests", "kvatlas_in_flight_tokens", "kvatlas_open_streams",
        "kvatlas_pending_requests", "kvatlas_held_bytes")  # fmt: skip


async def left_behind(rig: Rig) -> list[str]:
    """Return what is still there once everything had time to end."""
    end = time.monotonic() + QUIET_S
    while True:
        metrics = await samples(rig)
        left = [f"{name} is {total(metrics, name):g}" for name in LEFT if total(metrics, name)]
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(0.5)


async def miscounted(rig: Rig) -> list[str]:
    """Return the counters that do not add up."""
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


async def lost(rig: Rig) -> list[str]:
    """Return tasks that failed and readiness that did not come back, and print for how long the loop was held."""
    metrics = await samples(rig)
    print(f"loop held for {metrics['kvatlas_loop_held_longest_seconds'] * 1000:.0f} ms at most")
    failed = {
        key: value for key, value in metrics.items() if key.startswith("kvatlas_tasks_failed_total") and value
    }
    problems = [f"{key} is {value:g}" for key, value in failed.items()]
    async with rig.rest.get("/readyz") as answer:
        if answer.status != HTTPStatus.OK:
            problems.append(f"not ready: {await answer.text()}")
    return problems


async def soak(minutes: float, n_clients: int, seed: int) -> list[str]:
    """Return everything that went wrong."""
    with tempfile.TemporaryDirectory(prefix="kvatlas-soak-") as folder:
        async with running(Path(folder), seed) as rig:
            until = time.monotonic() + minutes * 60
            memory: list[float] = []
            files: list[float] = []
            async with asyncio.TaskGroup() as tasks:  # it cancels the others, so that a failure ends the run
                for _ in range(n_clients):
                    tasks.create_task(keep_sending(rig, until))
                tasks.create_task(keep_failing(rig, until))
                tasks.create_task(keep_sampling(rig, until, memory, files))
            print(f"{sum(rig.answers.values())} requests: {dict(rig.answers)}")
            unexpected = [each for each in rig.answers if each[0].isdigit() and each not in ANSWERS]
            problems = [f"{rig.answers[each]} requests were answered {each}" for each in unexpected]
            problems += await left_behind(rig)
            return problems + await lost(rig) + await miscounted(rig) + grown(memory, files, every_s=SAMPLE_S)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this check."""
    parser.add_argument("--minutes", type=float, default=10, help="length of the run (10)")
    parser.add_argument("--clients", type=int, default=12, help="clients at once (12)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is left to chance (1)")


def run(options: argparse.Namespace) -> list[Table]:
    """Run the traffic; there are no figures.

    Raises:
        SystemExit: something went wrong.
    """
    # it logs every client that leaves an engine
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    problems = asyncio.run(soak(options.minutes, options.clients, options.seed))
    for problem in problems:
        print(f"not good: {problem}")
    if problems:
        raise SystemExit(1)
    return []


BENCHMARK = Benchmark(name="soak", about=__doc__, add_options=add_options, run=run, has_tables=False)
