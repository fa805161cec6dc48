"""Pods come, go and are replaced while requests flow through the chart's Envoy.

None of the requests fails, and none reaches a pod after its end was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from kvatlas.sim.envoy import EnvoyProcess, find_envoy
from support.envoy_gateway import pickers_in_use
from support.gateway_cluster import PODS, Traffic, cluster, envoy_config, kvatlas_config
from support.serve import ANY_PORTS, GIVES_NOTICE, Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

N_ROUNDS = 2


async def test_no_request_fails_when_pods_come_go_and_are_replaced(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(cluster(tmp_path))
        await made.run("a", 2)
        made.pool()
        served = await stack.enter_async_context(serving(kvatlas_config(made, tmp_path), tmp_path))
        envoy = await stack.enter_async_context(EnvoyProcess(envoy_config(served), binary=find_envoy()))
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def are(*names: str) -> None:
            async def they_are() -> bool:
                rows = (await served.get("/v1/endpoints"))["endpoints"]
                return sorted(row["name"] for row in rows) == [f"{name}-rank-0" for name in names]

            await until(they_are, what=f"endpoints {names}")

        async def end(name: str, left: str) -> None:
            """A pod is told to end: it goes on until its requests are done, and then it is gone."""
            made.put(name, made.numbers[name], ready=True, ends=True)
            await are(left)
            ended[made.servers[name].config.name] = asyncio.get_running_loop().time()
            await traffic.until_served_by(made.servers[left].config.name)
            await made.servers.pop(name).stop()
            made.api.delete(PODS, name)

        ended: dict[str, float] = {}
        traffic = Traffic(envoy.gateway_url, session)
        flow = asyncio.create_task(traffic.flow())
        try:
            await traffic.until_served_by("a.1")
            await made.run("b", 3, ready=False)
            await traffic.until_served_by("a.1")
            made.put("b", 3, ready=True)
            await traffic.until_served_by("a.1", "b.1")
            for number, (name, left) in enumerate([("a", "b"), ("b", "a")] * N_ROUNDS, start=4):
                made.api.break_watches("reset")
                made.api.compact()
                await end(name, left)
                await made.run(name, number)
                await are("a", "b")
                await traffic.until_served_by(*(server.config.name for server in made.servers.values()))
        finally:
            flow.cancel()
            await asyncio.wait([flow])
    flow.result()
    assert {answer.status for answer in traffic.answers} == {200}
    assert [a.server for a in traffic.answers if a.sent_at > ended.get(a.server, a.sent_at)] == []
    lives = range(1, N_ROUNDS + 2)
    assert {answer.server for answer in traffic.answers} == {
        f"{name}.{life}" for name in "ab" for life in lives
    }


async def test_no_request_fails_when_the_leader_is_told_to_end(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(cluster(tmp_path))
        await made.run("a", 2)
        made.pool()
        config = kvatlas_config(made, tmp_path) | {
            "server": ANY_PORTS | GIVES_NOTICE,
            "leaderElection": {"enabled": True, "retryPeriod": "100ms"},
        }
        pickers: list[Served] = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "kubeconfig").write_bytes((tmp_path / "kubeconfig").read_bytes())
            one = serving(config, tmp_path / name, ready=not pickers)
            pickers.append(await stack.enter_async_context(one))
        envoy = EnvoyProcess(envoy_config(*pickers), binary=find_envoy())
        await stack.enter_async_context(envoy)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        traffic = Traffic(envoy.gateway_url, session)
        leader, follower = pickers
        await pickers_in_use(envoy, session, 1)
        flow = asyncio.create_task(traffic.flow())
        try:
            await traffic.until_served_by("a.1")
            leader.process.send_signal(signal.SIGTERM)
            await follower.until_logged(": ready")
            await leader.process.wait()
            await traffic.until_served_by("a.1")
        finally:
            flow.cancel()
            await asyncio.wait([flow])
    flow.result()
    assert Counter(answer.status for answer in traffic.answers) == {200: len(traffic.answers)}
