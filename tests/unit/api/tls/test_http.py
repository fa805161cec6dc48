"""The certificate of an HTTP listener, over real connections."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from kvatlas.api.errors import ListenError, TlsError
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.api.rest.app import metrics_app
from kvatlas.api.rest.listener import HttpListener
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.api.tls.certificates import Certificates, make_certificates, make_metrics_certificates
from kvatlas.api.tls.http import http_context, server_context
from kvatlas.configs.listeners import AuthConfig, CipherSuite, MetricsTlsConfig, ServerConfig, TlsConfig
from support.certificates import CertificateFiles, certificate_files
from support.ext_proc import FixedRouter, make_route


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
    try:
        yield f"https://localhost:{port}/metrics"
    finally:
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


async def test_authorities_may_have_comments_in_any_language(files: CertificateFiles) -> None:
    authorities = files.folder / "clients.crt"
    authorities.write_bytes("# Autorité Racine\n".encode() + files.certificate)
    config = msgspec.structs.replace(files.config, client_ca_file=str(authorities))

    async with listening(config) as url:
        assert await status(url, trusting(files.certificate, files)) == 200


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


ECDSA: CipherSuite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
RSA: CipherSuite = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


def client(config: TlsConfig, newest: ssl.TLSVersion, ciphers: str = "DEFAULT") -> tuple[str, str] | None:
    """Shake hands with a server of that configuration; return version and cipher suite, None if that fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = newest
    context.set_ciphers(ciphers)
    one = context.wrap_bio(to_client, to_server)
    other = server_context(Certificates(config)).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return None
    cipher = one.cipher()
    assert cipher is not None
    return cipher[1], cipher[0]


@pytest.mark.parametrize(
    ("config", "newest", "expected"),
    [
        pytest.param({}, "TLSv1_3", ("TLSv1.3", "TLS_AES_256_GCM_SHA384"), id="newest"),
        pytest.param({"min_version": "TLSv1.3"}, "TLSv1_2", None, id="too_old"),
        pytest.param(
            {"cipher_suites": (ECDSA,)}, "TLSv1_2", ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"), id="suite"
        ),
        pytest.param(
            {"cipher_suites": (RSA,)}, "TLSv1_2", ("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384"), id="rsa_is_made"
        ),
        pytest.param(
            {"cipher_suites": (RSA,)},
            "TLSv1_3",
            ("TLSv1.3", "TLS_AES_256_GCM_SHA384"),
            id="suites_of_1_3_stay",
        ),
    ],
)
def test_clients_are_restricted_to_versions_and_suites(
    config: dict[str, Any], newest: str, expected: tuple[str, str] | None
) -> None:
    found = client(TlsConfig(**config), ssl.TLSVersion[newest])
    assert found is None if expected is None else found is not None and found[0] == expected[0]
    if found is not None and expected is not None and expected[0] != "TLSv1.3":
        assert found == expected


def test_other_suite_than_the_listed_ones_is_refused() -> None:
    config = TlsConfig(cipher_suites=(ECDSA,))
    assert client(config, ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES256-GCM-SHA384") is None


def test_changed_files_are_not_loaded_when_reload_is_off(files: CertificateFiles) -> None:
    certificates = Certificates(msgspec.structs.replace(files.config, reload=False))
    before = certificates.current()
    files.renew()
    assert certificates.current() is before


def test_metrics_may_have_a_certificate_of_its_own(files: CertificateFiles, tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    own = certificate_files(tmp_path / "metrics")
    pair = MetricsTlsConfig(cert_file=own.config.cert_file, key_file=own.config.key_file)
    tls = msgspec.structs.replace(files.config, min_version="TLSv1.3")
    certificates = make_metrics_certificates(ServerConfig(tls=tls, metrics_tls=pair))

    assert certificates is not None
    assert certificates.current().chain == own.certificate
    assert certificates.config.min_version == "TLSv1.3"
    assert make_metrics_certificates(ServerConfig(tls=tls)) is None


def test_unusable_certificate_of_metrics_is_named_by_its_key(tmp_path: Path) -> None:
    pair = MetricsTlsConfig(cert_file=str(tmp_path / "a"), key_file=str(tmp_path / "b"))
    with pytest.raises(TlsError, match=r"^server\.metricsTls\.keyFile: cannot read"):
        make_metrics_certificates(ServerConfig(metrics_tls=pair))


def test_transport_that_cannot_restrict_clients_is_refused() -> None:
    certificates = Certificates(TlsConfig(min_version="TLSv1.3"))
    with pytest.raises(ListenError, match="minVersion and cipherSuites need libnghttp2"):
        ExtProcServer(
            FixedRouter(make_route("a:1")), HealthService(), certificates=certificates, transport="grpc"
        )
