"""`kvatlas serve` with two workers: ports, shared in-flight accounts, responses for all, and a common end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE
from support.ext_proc import DUPLEX, metadata_destination, request_body, request_headers
from support.serve import ANY_PORTS, Served, config_text, serving
from support.waiting import until

ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2"]
BODY = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
Call = grpc.aio.StreamStreamCall[pb.ProcessingRequest, pb.ProcessingResponse]


def call_on(channel: grpc.aio.Channel) -> Call:
    process: grpc.aio.StreamStreamMultiCallable[pb.ProcessingRequest, pb.ProcessingResponse] = (
        channel.stream_stream(
            f"/{EXT_PROC_SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
    )
    return process()


async def destination(call: Call, request_id: str = "any") -> str:
    """Return the destination of a request, and leave its stream open, so that it stays in flight."""
    named = request_headers(("x-request-id", request_id), config=DUPLEX)
    for message in (named, request_body(BODY, end=True)):
        await call.write(message)
    answer = await call.read()
    assert isinstance(answer, pb.ProcessingResponse)
    return metadata_destination(answer)


def ports_of(served: Served, setting: str) -> dict[int, int]:
    """Return worker -> the last logged port of one of its listeners."""
    listening = re.compile(rf"worker (\d) INFO .*: {setting} listens on 127\.0\.0\.1:(\d+)")
    return {int(found[1]): int(found[2]) for line in served.log if (found := listening.search(line))}


def pid_of(worker: int, parent: int) -> int:
    """Return the process id of a worker; the parent starts them in order."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(children[worker])


class Workers:
    """Both workers of a kvatlas: their own metrics, and connections to each of them by the port that they share."""

    def __init__(self, served: Served, stack: AsyncExitStack) -> None:
        self._served, self._stack = served, stack

    async def in_flight(self, worker: int) -> float:
        """Return the number of requests that a worker has in flight of its own."""
        url = f"http://127.0.0.1:{ports_of(self._served, 'rest')[worker]}/metrics"
        async with self._served.session.get(url) as answer:
            found = re.findall(r"^kvatlas_in_flight_requests{.*} (\S+)$", await answer.text(), re.MULTILINE)
        return sum(map(float, found))

    async def call_to(self, worker: int, request_id: str = "any") -> tuple[Call, str]:
        """Return a call that a worker has in flight, and where it was sent; the kernel chooses the worker of each connection."""
        (port,) = set(ports_of(self._served, "extProc").values())
        before = [await self.in_flight(each) for each in (0, 1)]

        async def is_as_before() -> bool:
            return [await self.in_flight(each) for each in (0, 1)] == before

        while True:
            # connections of one process to one address are shared by default
            own = (("grpc.use_local_subchannel_pool", 1),)
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own)
            call = call_on(await self._stack.enter_async_context(channel))
            picked = await destination(call, request_id)
            if await self.in_flight(worker) > before[worker]:
                return call, picked
            call.cancel()
            await until(is_as_before, what="the end of the cancelled request")


@pytest.mark.slow
async def test_workers_share_in_flight_loads_and_are_restarted(tmp_path: Path) -> None:
    static = [{"name": address, "address": address, "events": "", "metrics": ""} for address in ADDRESSES]
    config: dict[str, Any] = {
        "server": ANY_PORTS | {"workers": 2},
        "endpoints": {"static": static},
        "plugins": [{"type": "active-request-scorer"}],
    }
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(config, tmp_path))
        await until(lambda: len(ports_of(served, "extProc")) == 2, what="both workers")
        assert len(set(ports_of(served, "rest").values())) == 2
        workers = Workers(served, stack)
        busy, taken = await workers.call_to(0)

        async def knows_it() -> bool:
            url = f"http://127.0.0.1:{ports_of(served, 'rest')[1]}/v1/score"
            async with served.session.post(url, json={"model": "m", "prompt": "x"}) as answer:
                endpoints = (await answer.json())["endpoints"]
            (raw,) = (each["scores"][0]["raw"] for each in endpoints if each["address"] == taken)
            return bool(raw == 1)

        await until(knows_it, what="the second worker to know what the first has sent")
        other, avoiding = await workers.call_to(1)
        assert {taken, avoiding} == set(ADDRESSES)
        busy.cancel()
        other.cancel()

        os.kill(pid_of(1, served.process.pid), signal.SIGKILL)

        def listens_again() -> bool:
            return sum("worker 1 INFO" in line and "extProc listens" in line for line in served.log) == 2

        await until(listens_again, what="the second worker again")
        assert any("gave its snapshot" in line and "worker 1" in line for line in served.log)
        _, picked = await workers.call_to(1)
        assert picked in ADDRESSES


@pytest.mark.slow
async def test_any_worker_answers_and_changes_weights_for_all(tmp_path: Path) -> None:
    static = [{"name": address, "address": address, "events": "", "metrics": ""} for address in ADDRESSES]
    config: dict[str, Any] = {"server": ANY_PORTS | {"workers": 2}, "endpoints": {"static": static}}
    async with serving(config, tmp_path) as served, AsyncExitStack() as stack:
        await until(lambda: len(ports_of(served, "rest")) == 2, what="both workers")

        async def ask(worker: int, path: str, body: dict[str, float] | None = None) -> Any:
            url = f"http://127.0.0.1:{ports_of(served, 'rest')[worker]}{path}"
            async with served.session.request("PUT" if body else "GET", url, json=body) as answer:
                return await answer.json()

        async def in_force() -> list[tuple[int, float]]:
            answers = [await ask(worker, "/v1/config") for worker in (0, 1)]
            return [(each["generation"], each["config"]["weights"]["queue"]) for each in answers]

        assert await in_force() == [(1, 2), (1, 2)]
        await until(lambda: hear_each_other(ask), what="both workers to hear each other")
        assert len((await ask(1, "/v1/weights", {"queue": 7}))["replicas"]) == 2
        assert await in_force() == [(2, 7), (2, 7)]

        await until(lambda: len(ports_of(served, "extProc")) == 2, what="both workers to be ready")
        workers = Workers(served, stack)
        for worker in (0, 1):
            await workers.call_to(worker, f"of-{worker}")
        for worker in (0, 1):
            await until(partial(lists_all, ask, worker), what="the decisions of both")
            for name in ("of-0", "of-1"):
                await until(partial(explains, ask, worker, name), what=f"the decision {name}")

        for worker in (1, 0):
            before = ports_of(served, "rest")[worker]
            os.kill(pid_of(worker, served.process.pid), signal.SIGKILL)
            await until(lambda: ports_of(served, "rest")[worker] != before, what="the worker again")  # noqa: B023
            await until(lambda: _is(in_force, [(2, 7), (2, 7)]), what="the weights in force again")
        (tmp_path / "kvatlas.yaml").write_bytes(config_text(config | {"weights": {"queue": 3}}))

        async def are_the_files() -> bool:
            own = [(await ask(worker, "/v1/replicas"))["configuration"] for worker in (0, 1)]
            return [queue for _, queue in await in_force()] == [3, 3] and len(set(own)) == 1

        await until(are_the_files, what="the file's weights in force")


async def lists_all(ask: Callable[[int, str], Awaitable[Any]], worker: int) -> bool:
    """Return whether a worker lists the decisions of both; one that is busy for a second is missing."""
    listed = await ask(worker, "/v1/decisions")
    names = {each["requestId"] for each in listed["decisions"]}
    return names == {"of-1", "of-0"} and listed["missingReplicas"] == []


async def explains(ask: Callable[[int, str], Awaitable[Any]], worker: int, name: str) -> bool:
    """Return whether a worker explains a decision, perhaps of the other one, which may be busy for a second."""
    found = await ask(worker, f"/v1/decisions/{name}")
    return (found.get("requestId"), found.get("configGeneration")) == (name, 2)


async def hear_each_other(ask: Callable[[int, str], Awaitable[Any]]) -> bool:
    found = [(await ask(worker, "/v1/replicas"))["replicas"] for worker in (0, 1)]
    return [[each["state"] for each in others] for others in found] == [["live"], ["live"]]


async def _is(ask: Callable[[], Awaitable[object]], wanted: object) -> bool:
    return await ask() == wanted
