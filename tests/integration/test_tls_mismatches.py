"""Peers that speak plain text to a listener with TLS, and TLS to one without: counted, logged once, named by the doctor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.api.extproc.intake import Intake
from kvatlas.api.http2.context import Limits
from kvatlas.api.http2.listener import Http2Listener
from kvatlas.api.rest.app import metrics_app
from kvatlas.api.rest.listener import HttpListener
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.api.tls.certificates import Certificates
from kvatlas.api.tls.http import server_context
from kvatlas.api.tls.mismatches import Mismatches
from kvatlas.configs.listeners import AuthConfig, TlsConfig
from support.certificates import Authority
from support.serve import ANY_PORTS, Served, serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def send(port: int, data: bytes) -> None:
    """Send plain text, until the listener closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass
    writer.close()


async def shake_hands(port: int) -> None:
    """Try to open a TLS connection; it verifies no certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=context)


def http_listener(found: Mismatches, *, with_tls: bool) -> HttpListener:
    report = found.at("server.metrics")
    registry = CollectorRegistry()
    tls = server_context(Certificates(TlsConfig()), on_mismatch=report) if with_tls else None
    app = metrics_app(registry, AuthConfig(), RestMetrics(registry))
    return HttpListener("server.metrics", app, tls, on_mismatch=report)


def http2_listener(found: Mismatches, *, with_tls: bool) -> Http2Listener:
    certificates = Certificates(TlsConfig()) if with_tls else None
    return Http2Listener(
        "server.extProc",
        methods={},
        limits=Limits(1024),
        account=Intake(),
        certificates=certificates,
        on_mismatch=found.at("server.extProc"),
    )


@pytest.mark.parametrize("data", [PREFACE, GET], ids=["http2", "http1"])
async def test_plain_text_is_counted_and_logged_once_when_the_listener_has_tls(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    found = Mismatches()
    http, http2 = http_listener(found, with_tls=True), http2_listener(found, with_tls=True)
    ports = [await http.start("127.0.0.1", 0), await http2.start("127.0.0.1", 0)]
    with caplog.at_level(logging.WARNING):
        for port in ports * 2:
            await send(port, data)
    await http.stop()
    await http2.stop(0)
    assert found.counts == {("server.metrics", "plaintext"): 2, ("server.extProc", "plaintext"): 2}
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == ["server.metrics", "server.extProc"]


async def test_tls_is_counted_and_logged_once_when_the_listener_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = Mismatches()
    http, http2 = http_listener(found, with_tls=False), http2_listener(found, with_tls=False)
    ports = [await http.start("127.0.0.1", 0), await http2.start("127.0.0.1", 0)]
    with caplog.at_level(logging.WARNING):
        for port in ports * 2:
            await shake_hands(port)
    await http.stop()
    await http2.stop(0)
    assert found.counts == {("server.metrics", "tls"): 2, ("server.extProc", "tls"): 2}
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == ["server.metrics", "server.extProc"]


async def test_peers_that_agree_and_other_errors_are_no_mismatch() -> None:
    found = Mismatches()
    plain, with_tls = http2_listener(found, with_tls=False), http2_listener(found, with_tls=True)
    ports = [await plain.start("127.0.0.1", 0), await with_tls.start("127.0.0.1", 0)]
    await send(ports[0], b"no protocol at all")
    context = ssl.create_default_context()  # does not trust the certificate
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection("127.0.0.1", ports[1], ssl=context)
    await plain.stop(0)
    await with_tls.stop(0)
    assert found.counts == {}


async def check(served: Served) -> tuple[str, list[str]]:
    checks = (await served.get("/v1/doctor"))["checks"]
    found = next(each for each in checks if each["name"] == "tls-agreed")
    return found["state"], found["evidence"]


async def until_counted(served: Served, listener: str, peer: str) -> None:
    """Wait for the count of a connection, which a thread may report after the peer has seen its end."""
    await served.until_metric(f'kvatlas_tls_mismatches_total{{listener="{listener}",peer="{peer}"}} 1.0')


@pytest.mark.slow
async def test_doctor_names_a_gateway_without_tls(tmp_path: Path) -> None:
    async with serving({}, tmp_path, "--secure-serving=true") as served:
        before = await check(served)
        await send(served.ports["extProc"], PREFACE)
        await until_counted(served, "server.extProc", "plaintext")
        assert await check(served) == (
            "fail",
            ["server.extProc listens with TLS: 1 connections came with plain text"],
        )
        await served.until_logged("server.extProc: a peer speaks plain text, but this listener speaks TLS")
    assert before[0] == "ok"


@pytest.mark.slow
async def test_doctor_names_a_gateway_with_tls(tmp_path: Path) -> None:
    async with serving({}, tmp_path) as served:
        await shake_hands(served.ports["metrics"])
        await until_counted(served, "server.metrics", "tls")
        assert await check(served) == (
            "warn",
            ["server.metrics listens with plain text: 1 connections came with TLS"],
        )
        await shake_hands(served.ports["extProc"])
        await until_counted(served, "server.extProc", "tls")
        assert (await check(served))[0] == "fail"


async def test_metrics_show_the_end_of_the_certificate_that_metrics_alone_has(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "authority").certify("localhost")
    pair = {"certFile": str(certificate), "keyFile": str(key)}
    async with serving({"server": ANY_PORTS | {"metricsTls": pair}}, tmp_path) as served:
        text = await served.metrics()
    assert 'kvatlas_tls_certificate_end_seconds{setting="server.metricsTls"}' in text
