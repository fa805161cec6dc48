"""The case list of the endpoint picker protocol, over real gRPC against real `kvatlas serve` processes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from aiohttp import web

from support.blocking_stream import Answer, converse
from support.certificates import CertificateFiles, certificate_files
from support.ext_proc_replies import comparable
from support.protocol_cases import CASES, ELSEWHERE, LIKE_PLAIN, NOT_HERE, SERVERS, WAITING, Case
from support.serve import ANY_PORTS, Served, serving
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = {
    *(f"R{n}" for n in range(1, 26)),
    *(f"S{n}" for n in range(1, 9)),
    *(f"E{n}" for n in range(1, 9)),
    *(f"P{n}" for n in range(1, 17)),
    *("B1", "B2", "H1", "H2", "H3", "C1", "C2", "C3"),
}


async def start_engines(stack: AsyncExitStack) -> str:
    """Serve /metrics of every endpoint; return the base URL. The endpoints themselves get no requests."""

    async def metrics(request: web.Request) -> web.Response:
        waiting = WAITING[request.match_info["address"]]
        return web.Response(
            text=f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
        )

    app = web.Application()
    app.router.add_get("/{address}/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.001)  # 0 means no limit
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    return f"http://{host}:{port}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return certificate_files(tmp_path_factory.mktemp("certificate"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(
    tmp_path_factory: pytest.TempPathFactory, files: CertificateFiles
) -> AsyncGenerator[dict[str, Served]]:
    """Run every server of the cases."""
    running: dict[str, Served] = {}
    done = asyncio.Event()
    turn = asyncio.Lock()  # one starts at a time, so that a busy machine delays none too long

    async def run(name: str, engines: str) -> None:
        async with AsyncExitStack() as stack:
            async with turn:
                folder = tmp_path_factory.mktemp(name)
                served = await stack.enter_async_context(serving(config_of(name, engines, files), folder))
                await until(lambda: knows_loads(served), what="every endpoint's load")
            running[name] = served
            await done.wait()

    async with AsyncExitStack() as stack:
        engines = await start_engines(stack)
        tasks = [asyncio.create_task(run(name, engines)) for name in SERVERS]
        while len(running) < len(SERVERS):
            ended, _ = await asyncio.wait(tasks, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                task.result()
        yield running
        done.set()
        await asyncio.gather(*tasks)


def config_of(name: str, engines: str, files: CertificateFiles) -> dict[str, object]:
    static = [
        {"name": address, "address": address, "events": "", "metrics": f"{engines}/{address}/metrics"}
        for address in WAITING
    ]
    endpoints = [] if name.startswith("empty") else static
    # a load must stay known if a busy machine scrapes late
    admission = {"metricsStalenessThreshold": "1m", **SERVERS[name].get("admission", {})}
    special = dict(SERVERS[name])
    tls: dict[str, object] = {"selfSigned": False}
    if special.pop("tls", False):
        tls = {"certFile": files.config.cert_file, "keyFile": files.config.key_file, "http": False}
    return {
        **special,
        "admission": admission,
        "endpoints": {"static": endpoints},
        "server": ANY_PORTS | {"tls": tls},
        "metricsScrape": {"staleAfter": "1m"},
    }


async def knows_loads(server: Served) -> bool:
    return all(row["load"] is not None for row in (await server.get("/v1/endpoints"))["endpoints"])


async def samples(server: Served) -> dict[str, float]:
    lines = re.findall(r"^(kvatlas\S+) (\S+)$", await server.metrics(), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def channel_to(server: Served, files: CertificateFiles | None) -> grpc.Channel:
    """Open a channel, with TLS if the server has a certificate."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    port = server.ports["extProc"]
    if files is None:
        return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
    return grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(files.certificate), options)


async def played(case: Case, server: Served, files: CertificateFiles) -> Answer:
    """Return what the server says to one case."""
    with channel_to(server, files if SERVERS[case.server].get("tls") else None) as channel:
        return await converse(channel, [message.SerializeToString() for message in case.sent])


EVERY_TRANSPORT = (
    *CASES,
    *(replace(case, server=server) for server in LIKE_PLAIN for case in CASES if case.server == "plain"),
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.id} {case.server}") for case in EVERY_TRANSPORT]
)
async def test_case_is_answered_as_the_protocol_has_it(
    case: Case, servers: dict[str, Served], files: CertificateFiles
) -> None:
    server = servers[case.server]
    before = await samples(server)

    answer = await played(case, server, files)

    assert len(answer.replies) == len(case.replies), answer
    for reply, expected in zip(answer.replies, case.replies, strict=True):
        assert comparable(reply, expected) == expected
    assert answer.code == case.code, answer.details
    after = await samples(server)
    grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in case.counted}
    assert grown == case.counted


async def test_every_row_of_the_list_is_covered() -> None:
    covered = {case.id.split()[0] for case in CASES} | ELSEWHERE.keys() | NOT_HERE.keys()

    assert covered == ROWS
    assert not [file for file in ELSEWHERE.values() if not (Path(__file__).parents[2] / file).exists()]
