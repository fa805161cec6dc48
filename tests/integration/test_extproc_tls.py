"""ext-proc over TLS: certificates from files, renewed while connected, asked of clients, and made at the start."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE, HealthService
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.api.tls.certificates import Certificates
from kvatlas.configs.listeners import TlsConfig
from kvatlas.sim.envoy import EnvoyConfig
from support.certificates import CertificateFiles, certificate_files
from support.envoy_gateway import gateway
from support.ext_proc import FixedRouter, make_route, metadata_destination, request_headers
from support.serve import serving
from support.transports import lack_http2

ADDRESS = "10.0.0.1:8000"


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return certificate_files(tmp_path)


@pytest.fixture(params=["http2", "grpc"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs on a machine with the native transport, and on one without."""
    lack_http2(monkeypatch, None if request.param == "http2" else "libnghttp2-14 is missing")
    carrier: str = request.param
    return carrier


@asynccontextmanager
async def picker(config: TlsConfig) -> AsyncGenerator[int]:
    """Port of a server."""
    router, health = FixedRouter(make_route(ADDRESS)), HealthService(ready=True)
    server = ExtProcServer(router, health, certificates=Certificates(config))
    port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.stop(0)


def connected(
    port: int, trusted: bytes, key: bytes | None = None, certificate: bytes | None = None
) -> grpc.aio.Channel:
    """Open a new connection of a client that trusts one certificate, and may show its own."""
    credentials = grpc.ssl_channel_credentials(trusted, key, certificate)
    # Channels to one server share a connection unless told otherwise.
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, [("grpc.use_local_subchannel_pool", 1)])


async def destination(channel: grpc.aio.Channel) -> str:
    process: grpc.aio.StreamStreamMultiCallable[pb.ProcessingRequest, pb.ProcessingResponse] = (
        channel.stream_stream(
            f"/{EXT_PROC_SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
    )
    answer = await process(iter([request_headers(end=True)]), timeout=20).read()
    assert isinstance(answer, pb.ProcessingResponse)
    return metadata_destination(answer)


async def test_new_connections_see_a_renewed_certificate_and_old_ones_stay(files: CertificateFiles) -> None:
    old = files.certificate
    async with picker(files.config) as port, connected(port, old) as before:
        assert await destination(before) == ADDRESS
        files.renew()

        async with connected(port, files.certificate) as after:
            assert await destination(after) == ADDRESS
        assert await destination(before) == ADDRESS
        async with connected(port, old) as late:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await destination(late)


async def test_client_must_show_a_certificate_that_is_vouched_for(
    files: CertificateFiles, tmp_path: Path
) -> None:
    for name in ("clients", "others"):
        (tmp_path / name).mkdir()
    client, other = certificate_files(tmp_path / "clients"), certificate_files(tmp_path / "others")
    config = msgspec.structs.replace(files.config, client_ca_file=client.config.cert_file)
    async with picker(config) as port:
        async with connected(port, files.certificate, client.key, client.certificate) as known:
            assert await destination(known) == ADDRESS
        async with connected(port, files.certificate) as unknown:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await destination(unknown)
        async with connected(port, files.certificate, other.key, other.certificate) as stranger:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await destination(stranger)


async def test_envoy_talks_to_a_made_certificate() -> None:
    def over_tls(config: EnvoyConfig) -> EnvoyConfig:
        clusters = config["static_resources"]["clusters"]
        kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        next(each for each in clusters if each["name"] == "kvatlas")["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": kind, "common_tls_context": {"alpn_protocols": ["h2"]}},
        }
        return config

    async with gateway("duplex", over_tls, certificates=Certificates(TlsConfig())) as at:
        assert await at.served_by() == at.servers[0].address
        assert len(at.router.requests) == 1


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--compat", "llm-d"), id="as_the_reference"),
        pytest.param(("--cert-path", "."), id="files_of_a_folder"),
    ],
)
async def test_process_speaks_tls_by_the_reference_flags(
    flags: tuple[str, ...], files: CertificateFiles
) -> None:
    flags = tuple(flag.replace(".", str(files.folder)) for flag in flags)
    async with serving({}, files.folder, *flags) as served:
        shown = await asyncio.to_thread(certificate_of, served.ports["extProc"])

    assert (shown == files.certificate.decode()) == ("--cert-path" in flags)


def certificate_of(port: int) -> str:
    """Return the certificate that the server shows."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
