"""Weights, endpoints and capacities that change while 500 requests a second flow."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.ext_proc import (
    DUPLEX,
    kind_of,
    metadata_destination,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from support.ext_proc_client import Conversation, ExtProcClient, connected
from support.recording import Player, player, read_frames
from support.scraping import MetricsServer
from support.serve import Served, config_text, serving
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

REQUESTS_A_SECOND = 500
MAX_OPEN = 64
"""Requests at once; a machine that is too slow for the rate is not flooded."""
N_CHANGES = 10
N_REQUESTS_BETWEEN = 100
BODY = b'{"model":"m","messages":[{"role":"user","content":"Where is this cached?"}]}'
STAYING_PORTS, FIRST_PORT, PORTS_EACH = 2, 100, 10
WEIGHTS = ("queue", "kvCacheUtilization", "gpuPrefixCache", "cpuPrefixCache")
Names = frozenset[str]


@dataclass
class Fleet:
    """The configuration in versions: a weight shows its version, and so does an endpoint's name."""

    folder: Path
    events: Player
    metrics_url: str
    weights_version: int = 0
    endpoints_version: int = 0
    capacity: int = 100

    @property
    def weights(self) -> dict[str, int]:
        return {name: 100 * place + self.weights_version for place, name in enumerate(WEIGHTS, start=1)}

    def names(self, version: int) -> Names:
        """Return two endpoints that stay, and three of this version alone."""
        return frozenset(("s0", "s1", *(f"v{version}n{number}" for number in range(3))))

    def config(self) -> dict[str, Any]:
        bounded = {"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": self.capacity}
        cpu = {"name": "cpu", "media": ["CPU"]}
        return {"endpoints": {"file": "servers.yaml"}, "weights": self.weights, "tiers": [bounded, cpu]}

    def servers(self) -> list[dict[str, str]]:
        """Return the endpoints: the staying ones are followed and scraped, the others change with the version."""
        rows = [
            {
                "name": name,
                "address": f"127.0.0.1:{1 + number}",
                "events": self.events.events.replace("127.0.0.1", host),
                "replay": self.events.replay,
                "metrics": self.metrics_url,
            }
            for number, (name, host) in enumerate((("s0", "127.0.0.1"), ("s1", "localhost")))
        ]
        return rows + [
            {
                "name": name,
                "address": f"127.0.0.1:{FIRST_PORT + PORTS_EACH * self.endpoints_version + number}",
                "metrics": self.metrics_url,
            }
            for number, name in enumerate(sorted(self.names(self.endpoints_version) - {"s0", "s1"}))
        ]

    def write(self) -> None:
        for name, text in (
            ("kvatlas.yaml", config_text(self.config())),
            ("servers.yaml", msgspec.yaml.encode(self.servers())),
        ):
            new = self.folder / f"{name}.new"
            new.write_bytes(text)
            new.rename(self.folder / name)


@dataclass
class Traffic:
    """Requests and previews in progress, and their responses."""

    served: Served
    n_sent: int = 0
    n_routed: int = 0
    failures: list[str] = field(default_factory=list[str])
    endpoints_version: int = 0
    """Certainly in force: no new request may go to an older endpoint."""
    decisions: dict[int, set[tuple[tuple[float, ...], Names]]] = field(
        default_factory=lambda: defaultdict(set[tuple[tuple[float, ...], Names]])
    )

    @asynccontextmanager
    async def flowing(self) -> AsyncGenerator[None]:
        stopping = asyncio.Event()
        async with connected(self.served.ports["extProc"]) as client:
            asking = (self._ask_for_a_prompt, self._ask_for_the_last)
            tasks = [asyncio.create_task(self._send(client, stopping))]
            await self.more(1)
            tasks += [asyncio.create_task(self._ask(ask, stopping)) for ask in asking]
            try:
                yield
            finally:
                stopping.set()
                await asyncio.gather(*tasks)

    async def more(self, count: int) -> None:
        """Wait until so many further requests have been routed."""
        wanted = self.n_routed + count
        async with asyncio.timeout(PATIENCE_S):
            while self.n_routed < wanted and not self.failures:  # noqa: ASYNC110 - another task counts
                await asyncio.sleep(0.005)

    async def _send(self, client: ExtProcClient, stopping: asyncio.Event) -> None:
        """Start requests at their times, regardless of earlier ones."""
        began = time.monotonic()
        ending: set[asyncio.Task[None]] = set()
        while not stopping.is_set():
            due = int((time.monotonic() - began) * REQUESTS_A_SECOND) - self.n_sent
            for _ in range(min(due, MAX_OPEN - len(ending))):
                self.n_sent += 1
                request = (request_headers(config=DUPLEX), request_body(BODY, end=True))
                conversation = client.converse(request, (response_headers(), response_body(b"{}", end=True)))
                task = asyncio.create_task(self._see_through(conversation, self.endpoints_version))
                ending.add(task)
                task.add_done_callback(ending.discard)
            await asyncio.sleep(1 / REQUESTS_A_SECOND)
        await asyncio.gather(*ending)
        print(  # noqa: T201 - the achieved rate
            f"{self.n_routed / (time.monotonic() - began):.0f} of {REQUESTS_A_SECOND} requests/s"
        )

    async def _see_through(self, conversation: Conversation, oldest: int) -> None:
        """Finish the conversation; `oldest` was in force when it began."""
        if (wrong := await conversation.ended) is not None:
            self.failures.append(wrong)
            return
        kinds = [kind_of(answer) for answer in conversation.answers]
        if kinds != ["request_headers", "request_body", "response_headers", "response_body"]:
            self.failures.append(str(conversation.answers))
            return
        port = int(metadata_destination(conversation.answers[0]).rpartition(":")[2])
        if STAYING_PORTS < port < FIRST_PORT + PORTS_EACH * oldest:
            self.failures.append(f"a request went to port {port} after version {oldest} was in force")
            return
        self.n_routed += 1

    async def _ask(self, ask: Callable[[], Awaitable[Any]], stopping: asyncio.Event) -> None:
        """Request decisions until stopped; note the weights, endpoints and generation of each."""
        while not stopping.is_set():
            answer = await ask()
            if "endpoints" not in answer:
                self.failures.append(str(answer))
                return
            (weights,) = {tuple(score["weight"] for score in each["scores"]) for each in answer["endpoints"]}
            names = frozenset(each["name"] for each in answer["endpoints"])
            self.decisions[answer["configGeneration"]].add((weights, names))
            await asyncio.sleep(0.01)

    async def _ask_for_a_prompt(self) -> Any:
        return await self.served.post("/v1/score", {"model": "m", "token_ids": [1, 2, 3]})

    async def _ask_for_the_last(self) -> Any:
        return await self.served.get("/v1/decisions/id-1")


async def change(fleet: Fleet, served: Served, kind: str, number: int) -> None:
    """Make one change, in the way an operator makes it."""
    match kind:
        case "weights by file":
            fleet.weights_version = number
            fleet.write()
        case "weights by REST":
            fleet.weights_version = number
            await served.put("/v1/weights", fleet.weights)
        case "endpoints":
            fleet.endpoints_version = number
            fleet.write()
        case _:
            fleet.capacity = 10 + number
            fleet.write()


async def test_requests_flow_on_and_no_decision_mixes_two_configurations(
    golden: Path, tmp_path: Path
) -> None:
    frames = read_frames(golden / "run1_zmq.jsonl")[:40]
    kinds = ("weights by file", "endpoints", "capacity", "weights by REST", "endpoints")
    async with player() as events, MetricsServer() as load:
        await events.publish(*frames)
        fleet = Fleet(tmp_path, events, load.url)
        fleet.write()
        expected = {1: (tuple(fleet.weights.values()), fleet.names(0))}
        async with serving(fleet.config(), tmp_path) as served:
            traffic = Traffic(served)
            async with traffic.flowing():
                for number, kind in zip(range(1, N_CHANGES + 1), itertools.cycle(kinds), strict=False):
                    await traffic.more(N_REQUESTS_BETWEEN)
                    await change(fleet, served, kind, number)
                    await served.until_generation(number + 1)
                    traffic.endpoints_version = fleet.endpoints_version
                    expected[number + 1] = (
                        tuple(fleet.weights.values()),
                        fleet.names(fleet.endpoints_version),
                    )
                    await traffic.more(N_REQUESTS_BETWEEN)
                    assert traffic.failures == []
            metrics = await served.metrics()
            rows = (await served.get("/v1/endpoints"))["endpoints"]

    assert traffic.failures == []
    assert traffic.n_routed >= N_CHANGES * 2 * N_REQUESTS_BETWEEN
    assert {g: found for g, found in traffic.decisions.items() if found != {expected[g]}} == {}
    assert len(traffic.decisions) > N_CHANGES / 2
    assert 'kvatlas_config_loads_total{outcome="refused"' not in metrics
    assert "kvatlas_refusals_total{" not in metrics
    assert {row["name"] for row in rows} == fleet.names(fleet.endpoints_version)
    assert {row["load"]["inFlightRequests"] for row in rows} == {0}
    assert {row["tiers"][0]["capacity"] for row in rows} == {fleet.capacity}
    assert all(f'endpoint="v{version}n0"' not in metrics for version in range(fleet.endpoints_version))
    assert not [line for line in served.log if "ERROR" in line or "Traceback" in line]
