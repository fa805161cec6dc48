"""The certificate of an HTTP listener, over real connections."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from kvatlas.api.rest.app import metrics_app
from kvatlas.api.rest.listener import HttpListener
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.api.tls.certificates import Certificates, make_certificates
from kvatlas.api.tls.http import http_context, server_context
from kvatlas.configs.listeners import AuthConfig, TlsConfig
from support.certificates import CertificateFiles, certificate_files


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return certificate_files(tmp_path)


@asynccontextmanager
async def listening(config: TlsConfig) -> AsyncGenerator[str]:
    """Run a listener; yield the address of its `/metrics`."""
    context, registry = server_context(Certificates(config)), CollectorRegistry()
    listener = HttpListener(
        "server.metrics", metrics_app(registry, AuthConfig(), RestMetrics(registry)), context
    )
    port = await listener.start("127.0.0.1", 0)
    yield f"https://localhost:{port}/metrics"
    await listener.stop()


def trusting(certificate: bytes, shown: CertificateFiles | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificate.decode())
    if shown is not None:
        context.load_cert_chain(shown.config.cert_file, shown.config.key_file)
    return context


async def status(url: str, context: ssl.SSLContext) -> int:
    """Return the status of a call over a new connection."""
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
        return answer.status


async def test_new_connections_see_a_renewed_certificate(files: CertificateFiles) -> None:
    old = files.certificate
    async with listening(files.config) as url:
        assert await status(url, trusting(old)) == 200
        files.renew()
        assert await status(url, trusting(files.certificate)) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(url, trusting(old))


async def test_client_must_show_a_certificate_that_is_vouched_for(
    files: CertificateFiles, tmp_path: Path
) -> None:
    for name in ("known", "later"):
        (tmp_path / name).mkdir()
    known, later = (certificate_files(tmp_path / name) for name in ("known", "later"))
    authorities = tmp_path / "clients.crt"
    authorities.write_bytes(known.certificate)
    config = msgspec.structs.replace(files.config, client_ca_file=str(authorities))
    async with listening(config) as url:
        assert await status(url, trusting(files.certificate, known)) == 200
        for stranger in (trusting(files.certificate), trusting(files.certificate, later)):
            with pytest.raises(aiohttp.ClientError):
                await status(url, stranger)
        authorities.write_bytes(later.certificate)
        assert await status(url, trusting(files.certificate, later)) == 200
        with pytest.raises(aiohttp.ClientError):
            await status(url, trusting(files.certificate, known))


@pytest.mark.parametrize(
    ("config", "by_default", "is_on"),
    [
        pytest.param(TlsConfig(), False, False, id="none"),
        pytest.param(TlsConfig(), True, False, id="made_since_the_reference_makes_one"),
        pytest.param(TlsConfig(self_signed=True), False, True, id="made_since_asked_for"),
        pytest.param(TlsConfig(self_signed=True, http=False), False, False, id="switched_off"),
    ],
)
def test_http_has_tls_when_configured(config: TlsConfig, by_default: bool, is_on: bool) -> None:
    certificates = make_certificates(config, by_default=by_default)

    assert (http_context(config, certificates) is not None) == is_on
