"""The attribute `GPUUtilization`: pages of DCGM exporters, shared by the endpoints of a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.dcgm import DcgmConfig
from kvatlas.configs.endpoints import EndpointAddresses
from kvatlas.configs.units import Duration
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.gpus import Gpus
from kvatlas.fleet.scrape.gpu import utilization_of
from support.fleets import make_config, make_fleet
from support.scraping import MetricsServer, answering
from support.waiting import until

NAN = pytest.approx(float("nan"), nan_ok=True)


def page(**utilization: float) -> bytes:
    """Return a page with one GPU of each pod; the pod `sidecar` stands for no label."""
    lines = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    for number, (pod, value) in enumerate(utilization.items()):
        label = "" if pod == "sidecar" else f',pod="{pod.replace("_", "-")}"'
        lines.append(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{number}"{label}}} {value}')
    return "\n".join((*lines, "")).encode()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param(page(sidecar=40), {"a": 0.4, "ns/b": 0.4, "c-rank-1": 0.4}, id="without_pods"),
        pytest.param(page(a=40, b=70, c=10), {"a": 0.4, "ns/b": 0.7, "c-rank-1": 0.1}, id="pods"),
        pytest.param(page(other=40), {"a": NAN, "ns/b": NAN, "c-rank-1": NAN}, id="other_pods"),
        pytest.param(page(a=120, c=-1), {"a": NAN, "ns/b": NAN, "c-rank-1": NAN}, id="impossible"),
        pytest.param(b"", {"a": NAN, "ns/b": NAN, "c-rank-1": NAN}, id="no_series"),
    ],
)
def test_utilization_is_that_of_the_busiest_gpu_of_the_pod(body: bytes, found: dict[str, float]) -> None:
    assert utilization_of(body, found) == found


def test_several_gpus_of_a_pod_count_by_the_busiest() -> None:
    body = page(a=40) + page(a=90) + page(a=20)

    assert utilization_of(body, ["a"]) == {"a": 0.9}


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    async with MetricsServer() as server:
        server.answer = answering(page(a=40, b=70))
        yield server


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with make_fleet(make_config(metricsScrape={"dcgm": {"enabled": True}})) as fleet:
        yield fleet


def add(fleet: Fleet, name: str, host: str, *, node: str | None = None) -> None:
    fleet.add(name, EndpointAddresses(HostPort(host, 8000), None, (), node=node), {})


def shown(fleet: Fleet) -> list[float]:
    return list(map(float, fleet.candidates(None, now=1.0).attribute("GPUUtilization")))


def exporter(server: MetricsServer, **more: object) -> DcgmConfig:
    return DcgmConfig(enabled=True, port=server.port, interval=Duration(0.01), **more)  # type: ignore[arg-type]


async def test_endpoints_of_a_node_share_one_page(server: MetricsServer, fleet: Fleet) -> None:
    for name in ("a", "b", "c"):
        add(fleet, name, "192.0.2.1", node="127.0.0.1")
    gpus = Gpus(fleet)

    gpus.configure(exporter(server, use_node_address=True))
    try:
        await until(lambda: shown(fleet) == [0.4, 0.7, NAN])
        server.answer = answering(page(b=10))
        await until(lambda: shown(fleet) == [NAN, 0.1, NAN])
        assert len(server.clients) == 1
        assert server.queries[0] == "name[]=DCGM_FI_DEV_GPU_UTIL"
        fleet.forget("a")
        await until(lambda: shown(fleet) == [0.1, NAN])
    finally:
        await gpus.stop()


async def test_utilization_is_unknown_while_an_exporter_fails(
    server: MetricsServer, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kvatlas.fleet.gpus")
    add(fleet, "a", "127.0.0.1")
    gpus = Gpus(fleet)
    gpus.configure(exporter(server))
    try:
        await until(lambda: shown(fleet) == [0.4])
        server.answer = answering(b"busy", status=503)
        await until(lambda: shown(fleet) == [NAN])
        await server.stop()
        await until(lambda: server.n_requests > 0)
        await server.start()
        server.answer = answering(page(a=20))
        await until(lambda: shown(fleet) == [0.2])
    finally:
        await gpus.stop()
    said = [record.message.partition(" (http")[0] for record in caplog.records]
    assert said == ["scraping the GPUs of a fails", "scraping the GPUs of a works again"]


async def test_another_configuration_ends_the_scraping(server: MetricsServer, fleet: Fleet) -> None:
    add(fleet, "a", "127.0.0.1")
    gpus = Gpus(fleet)
    gpus.configure(exporter(server))
    await until(lambda: server.n_requests > 0)

    gpus.configure(DcgmConfig())

    assert [task for task in asyncio.all_tasks() if task.get_name() == "GPUs" and not task.cancelling()] == []
