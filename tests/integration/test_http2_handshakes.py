"""TLS handshakes of the gRPC listener: counted among its connections, limited in time, ended with it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
import uvloop
from prometheus_client import CollectorRegistry

from kvatlas.api.errors import TlsError
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.http2.context import Limits, Times
from kvatlas.api.http2.listener import Http2Listener
from kvatlas.api.http2.metrics import TransportMetrics
from kvatlas.api.tls.certificates import Certificates
from kvatlas.api.tls.identity import Identity
from support.certificates import CertificateFiles, certificate_files, refused_pair
from support.ext_proc_client import Frame
from support.http2 import PREFACE, frame
from support.openssl_peer import openssl_peer
from support.waiting import until

PART_OF_A_HELLO = b"\x16\x03\x01\x02\x00"


class Running:
    """A running listener with TLS."""

    def __init__(
        self,
        folder: Path,
        *,
        with_tls: bool = True,
        terms: Mapping[str, Any] = MappingProxyType({}),
        **limits: Any,
    ) -> None:
        files = certificate_files(folder)
        self.registry, self.ca, self.port = CollectorRegistry(), files.certificate, 0
        self.account = Intake()
        self.listener = Http2Listener(
            "server.extProc",
            methods={},
            limits=Limits(1024, **limits),
            account=self.account,
            metrics=TransportMetrics(self.registry),
            certificates=Certificates(msgspec.structs.replace(files.config, **terms)) if with_tls else None,
        )

    def closed(self, reason: str) -> float:
        """Return how many connections a limit has closed."""
        return self.value("kvatlas_extproc_connections_closed_total", reason=reason)

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a metric, 0 if it is absent."""
        self.account.refresh_all()
        return self.registry.get_sample_value(name, labels) or 0.0

    @contextmanager
    def peers(self, n: int, sent: bytes = b"") -> Generator[list[socket.socket]]:
        """Open connections that stop within their handshakes."""
        made: list[socket.socket] = []
        try:
            for _ in range(n):
                made.append(socket.create_connection(("127.0.0.1", self.port), timeout=30))
                made[-1].sendall(sent)
            yield made
        finally:
            for each in made:
                each.close()


@asynccontextmanager
async def running(folder: Path, *, grace_s: float = 0.0, **limits: Any) -> AsyncGenerator[Running]:
    found = Running(folder, **limits)
    found.port = await found.listener.start("127.0.0.1", 0)
    try:
        yield found
    finally:
        await found.listener.stop(grace_s)


def is_over(peer: socket.socket) -> bool:
    """Wait for the end of the connection."""
    try:
        while peer.recv(4096):  # the settings, if it came so far
            pass
    except ConnectionResetError:
        pass
    return True


async def test_handshake_gives_up_its_place_to_a_later_connection(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections=2) as found:
        with found.peers(3) as peers:
            assert await asyncio.to_thread(is_over, peers[0])
            assert found.closed("full") == 1


async def test_gateway_keeps_its_place_beside_handshakes_without_end(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections=3) as found:
        credentials = grpc.ssl_channel_credentials(found.ca)
        options = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(f"127.0.0.1:{found.port}", credentials, options) as channel:
            await channel.channel_ready()
            with found.peers(40):
                await until(lambda: found.closed("full") >= 38, what="handshakes closed")
                assert channel.get_state() is grpc.ChannelConnectivity.READY


async def test_gateway_keeps_its_place_beside_peers_that_say_half_a_greeting(tmp_path: Path) -> None:
    async with (
        running(tmp_path, with_tls=False, max_connections=3) as found,
        grpc.aio.insecure_channel(f"127.0.0.1:{found.port}") as channel,
    ):
        await channel.channel_ready()
        with ExitStack() as stack:
            for _ in range(4):
                (peer,) = stack.enter_context(found.peers(1, PREFACE[:24]))
                # The server's settings show that it has been read; only its own are missing.
                assert await asyncio.to_thread(peer.recv, 4096)
            assert found.closed("full") == 2
            assert channel.get_state() is grpc.ChannelConnectivity.READY


async def test_client_that_offers_another_protocol_alone_is_not_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        context = ssl.create_default_context(cadata=found.ca.decode())
        context.set_alpn_protocols(["http/1.1"])  # with sanitizers, nothing may be read after this list

        _, peer = await asyncio.open_connection(
            "127.0.0.1", found.port, ssl=context, server_hostname="localhost"
        )

        assert peer.get_extra_info("ssl_object").selected_alpn_protocol() is None
        peer.close()


@pytest.mark.parametrize("sent", [b"", PART_OF_A_HELLO], ids=["mute", "part_of_a_hello"])
async def test_handshake_that_never_ends_is_ended_and_counted(tmp_path: Path, sent: bytes) -> None:
    async with running(tmp_path, times=Times(greeting_s=0.2)) as found:
        with found.peers(3, sent) as peers:
            assert all([await asyncio.to_thread(is_over, peer) for peer in peers])
        assert found.closed("handshake") == 3


@pytest.mark.parametrize("sent", [b"", PART_OF_A_HELLO], ids=["mute", "part_of_a_hello"])
async def test_stop_ends_handshakes_at_once(tmp_path: Path, sent: bytes) -> None:
    with ExitStack() as stack:
        async with running(tmp_path, grace_s=3600, max_connections=2, times=Times(greeting_s=3600)) as found:
            peers = stack.enter_context(found.peers(3, sent))
            await asyncio.to_thread(is_over, peers[0])  # the others are accepted by now

        assert all([await asyncio.to_thread(is_over, peer) for peer in peers[1:]])


def test_stop_ends_though_connections_gave_up_their_places_while_they_were_opened(tmp_path: Path) -> None:
    async def run() -> float:
        async with running(tmp_path, with_tls=False, max_connections=2) as found:
            with found.peers(100) as peers:
                await until(lambda: found.closed("full") == 98, what="connections closed")
                assert await asyncio.to_thread(is_over, peers[0])
        return found.closed("full")

    assert uvloop.run(run()) == 98  # the process's loop; asyncio's own reports the ends of such connections


def greeted(found: Running) -> bytes:
    """Open and close a connection; returns the beginning of what the server says."""
    context = ssl.create_default_context(cadata=found.ca.decode())
    peer = socket.create_connection(("127.0.0.1", found.port), timeout=30)
    with context.wrap_socket(peer, server_hostname="localhost") as client:
        client.sendall(PREFACE)
        return client.recv(9)


def shake_hands(peer: socket.socket, ca: bytes) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """Complete a TLS handshake by hand; returns the client, and what it has to send."""
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cadata=ca.decode())
    client = context.wrap_bio(inward, outward, server_hostname="localhost")
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            peer.sendall(outward.read())
            inward.write(peer.recv(16384))
        else:
            peer.sendall(outward.read())
            return client, outward


async def test_part_of_a_record_is_waited_for_without_work(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        with socket.create_connection(("127.0.0.1", found.port), timeout=30) as peer:
            client, outward = await asyncio.to_thread(shake_hands, peer, found.ca)
            client.write(PREFACE + bytes(4000))
            peer.sendall(outward.read()[:1000])
            for _ in range(20):
                assert await asyncio.to_thread(greeted, found)

        assert found.value("kvatlas_extproc_turns_deferred_total") == 0


async def test_tiny_records_are_read_in_several_turns(tmp_path: Path) -> None:
    pings = frame(Frame.SETTINGS, b"", 0, 0) + frame(Frame.PING, bytes(8), 0, 0) * 50
    async with running(tmp_path) as found:
        with socket.create_connection(("127.0.0.1", found.port), timeout=30) as peer:
            client, outward = await asyncio.to_thread(shake_hands, peer, found.ca)
            for byte in PREFACE + pings:
                client.write(bytes([byte]))
            peer.sendall(outward.read())
            await until(
                lambda: found.value("kvatlas_extproc_turns_deferred_total"), what="a turn that was put off"
            )


async def test_end_within_the_last_read_closes_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        with socket.create_connection(("127.0.0.1", found.port), timeout=10) as peer:
            client, outward = await asyncio.to_thread(shake_hands, peer, found.ca)
            client.write(PREFACE + frame(Frame.SETTINGS, b"", 0, 0))
            with pytest.raises(ssl.SSLWantReadError):
                client.unwrap()
            peer.sendall(outward.read())  # the socket stays open
            assert await asyncio.to_thread(is_over, peer)


def updated(found: Running, n: int) -> bytes:
    """Update the keys of a connection so many times; returns the beginning of what the server says."""
    with openssl_peer(found.port) as peer:
        for _ in range(n):
            if not peer.update_keys():
                return b""
        peer.write(PREFACE)
        return peer.read(9)


async def test_client_updates_its_keys(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        assert (await asyncio.to_thread(updated, found, 20))[3] == Frame.SETTINGS
        assert found.closed("tls_messages") == 0


def flood(found: Running) -> None:
    """Update the keys of a connection until its end, without reading."""
    with openssl_peer(found.port) as peer:
        while peer.update_keys():
            pass


async def test_client_that_updates_its_keys_without_end_is_closed_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as found:
        await asyncio.to_thread(flood, found)
        await until(lambda: found.closed("tls_messages") == 1, what="a connection closed")


ECDSA_128, ECDSA_256 = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
ONE_SUITE = {"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)}


def agreed(found: Running, newest: ssl.TLSVersion, suites: str) -> tuple[str, str] | None:
    """Return version and cipher suite of a connection; None if the server refuses the client."""
    context = ssl.create_default_context(cadata=found.ca.decode())
    context.maximum_version = newest
    context.set_ciphers(suites)
    with socket.create_connection(("127.0.0.1", found.port), timeout=30) as peer:
        try:
            with context.wrap_socket(peer, server_hostname="localhost") as client:
                name, version, _ = client.cipher() or ("", "", 0)
                return str(client.version() or version), name
        except ssl.SSLError:
            return None


@pytest.mark.parametrize(
    ("terms", "newest", "suites", "expected"),
    [
        pytest.param({}, "TLSv1_2", "DEFAULT", ("TLSv1.2", ECDSA_128), id="by_default"),
        pytest.param({}, "TLSv1_2", "ECDHE-ECDSA-AES128-SHA", None, id="suite_that_http2_forbids"),
        pytest.param({}, "TLSv1_2", f"{ECDSA_256}:{ECDSA_128}", ("TLSv1.2", ECDSA_128), id="servers_order"),
        pytest.param({"min_version": "TLSv1.3"}, "TLSv1_2", "DEFAULT", None, id="too_old"),
        pytest.param(ONE_SUITE, "TLSv1_2", "DEFAULT", ("TLSv1.2", ECDSA_128), id="suite"),
        pytest.param(ONE_SUITE, "TLSv1_2", ECDSA_256, None, id="other_suite"),
        pytest.param(
            {**ONE_SUITE, "min_version": "TLSv1.3"},
            "TLSv1_3",
            "DEFAULT",
            ("TLSv1.3", "TLS_AES_256_GCM_SHA384"),
            id="suites_of_1_3_stay",
        ),
    ],
)
async def test_clients_are_restricted_to_versions_and_suites(
    terms: dict[str, Any], newest: str, suites: str, expected: tuple[str, str] | None, tmp_path: Path
) -> None:
    async with running(tmp_path, terms=terms) as found:
        assert await asyncio.to_thread(agreed, found, ssl.TLSVersion[newest], suites) == expected


class Shown(Certificates):
    """Certificates that OpenSSL takes for Python, and that the listener may refuse."""

    def __init__(self, files: CertificateFiles) -> None:
        super().__init__(files.config)
        self.shown = self.current()

    def current(self) -> Identity:
        return getattr(self, "shown", None) or super().current()


def with_pair(certificates: Certificates) -> Http2Listener:
    return Http2Listener(
        "server.extProc", methods={}, limits=Limits(1024), account=Intake(), certificates=certificates
    )


REFUSED = Identity(*refused_pair(), client_ca=None, not_after=0.0)


async def test_listener_does_not_start_with_a_pair_that_it_refuses(tmp_path: Path) -> None:
    certificates = Shown(certificate_files(tmp_path))
    certificates.shown = REFUSED

    with pytest.raises(TlsError, match=r"server\.tls\.certFile: OpenSSL refuses the certificate"):
        await with_pair(certificates).start("127.0.0.1", 0)


async def test_connections_see_the_pair_before_one_that_the_listener_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = certificate_files(tmp_path)
    certificates = Shown(files)
    listener = with_pair(certificates)
    port = await listener.start("127.0.0.1", 0)
    certificates.shown = REFUSED
    try:
        for _ in range(2):
            seen = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
            assert seen.split() == files.certificate.decode().split()
    finally:
        await listener.stop(0)

    assert [each.message.partition(":")[0] for each in caplog.records] == [
        "the certificate stays as it was, OpenSSL refuses the changed one"
    ]
