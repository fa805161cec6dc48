"""Weights, endpoints and capacities that change while requests flow."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import (
    DUPLEX,
    kind_of,
    metadata_destination,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from support.recording import Player, player, read_frames
from support.scraping import MetricsServer
from support.serve import Served, config_text, serving

pytestmark = pytest.mark.slow

N_CLIENTS = 8
N_CHANGES = 10
N_REQUESTS_BETWEEN = 30
BODY = b'{"model":"m","messages":[{"role":"user","content":"Where is this cached?"}]}'
STAYING_PORTS, FIRST_PORT, PORTS_EACH = 2, 100, 10
WEIGHTS = ("queue", "kvCacheUtilization", "gpuPrefixCache", "cpuPrefixCache")
Names = frozenset[str]


@dataclass
class Fleet:
    """What is in force, in versions: a weight tells its version, and so does an endpoint's name."""

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
        """Two endpoints that stay, and three of this version alone."""
        return frozenset(("s0", "s1", *(f"v{version}n{number}" for number in range(3))))

    def config(self) -> dict[str, Any]:
        bounded = {"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": self.capacity}
        cpu = {"name": "cpu", "media": ["CPU"]}
        return {"endpoints": {"file": "servers.yaml"}, "weights": self.weights, "tiers": [bounded, cpu]}

    def servers(self) -> list[dict[str, str]]:
        """The staying ones are followed and scraped; of the others one moves from version to version."""
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
    """Requests and questions that flow, and what they were answered."""

    served: Served
    n_routed: int = 0
    n_scored: int = 0
    failures: list[str] = field(default_factory=list[str])
    endpoints_version: int = 0
    """In force for certain: whatever starts from now on goes to no older endpoint."""
    decisions: dict[int, set[tuple[tuple[float, ...], Names]]] = field(
        default_factory=lambda: defaultdict(set[tuple[tuple[float, ...], Names]])
    )

    @asynccontextmanager
    async def flowing(self) -> AsyncGenerator[None]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{self.served.ports['extProc']}", options=options
        ) as channel:
            process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
                "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
                response_deserializer=pb.ProcessingResponse.FromString,
            )
            stopping = asyncio.Event()
            tasks = [asyncio.create_task(self._send(process, stopping)) for _ in range(N_CLIENTS)]
            tasks += [asyncio.create_task(self._ask(stopping)) for _ in range(2)]
            try:
                yield
            finally:
                stopping.set()
                await asyncio.gather(*tasks)

    async def more(self, count: int) -> None:
        """Wait until so many further requests have been routed."""
        wanted = self.n_routed + count
        async with asyncio.timeout(60):
            while self.n_routed < wanted and not self.failures:  # noqa: ASYNC110 - counts what others do
                await asyncio.sleep(0.005)

    async def _send(
        self,
        process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse],
        stopping: asyncio.Event,
    ) -> None:
        """One client: request after request, each to the end of its answer."""
        while not stopping.is_set():
            call, oldest = process(), self.endpoints_version
            for message in (request_headers(config=DUPLEX), request_body(BODY, end=True)):
                await call.write(message.SerializeToString())
            routed = await call.read()
            if not isinstance(routed, pb.ProcessingResponse) or kind_of(routed) != "request_headers":
                self.failures.append(repr(routed))
                return
            port = int(metadata_destination(routed).rpartition(":")[2])
            if STAYING_PORTS < port < FIRST_PORT + PORTS_EACH * oldest:
                self.failures.append(f"a request went to port {port} after version {oldest} was in force")
                return
            await call.read()
            for message in (response_headers(), response_body(b"{}", end=True)):
                await call.write(message.SerializeToString())
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
            if await call.code() != grpc.StatusCode.OK:
                self.failures.append(str(await call.code()))
                return
            self.n_routed += 1

    async def _ask(self, stopping: asyncio.Event) -> None:
        """What decides: the weights, the endpoints, and the generation that the decision says it is of."""
        while not stopping.is_set():
            answer = await self.served.post("/v1/score", {"model": "m", "token_ids": [1, 2, 3]})
            if "endpoints" not in answer:
                self.failures.append(str(answer))
                return
            (weights,) = {tuple(score["weight"] for score in each["scores"]) for each in answer["endpoints"]}
            names = frozenset(each["name"] for each in answer["endpoints"])
            self.decisions[answer["configGeneration"]].add((weights, names))
            self.n_scored += 1


async def change(fleet: Fleet, served: Served, kind: str, number: int) -> None:
    """One change, by the way it is made in life."""
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
        await events.say(*frames)
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
