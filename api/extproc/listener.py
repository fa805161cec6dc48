"""One gRPC server on one address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, aio
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from ..errors import ListenError
from ..http2.context import DEFAULT_MAX_STREAMS
from ..tls.certificates import Certificates
from ..tls.credentials import server_credentials

_OPTIONS: tuple[tuple[str, int], ...] = (
    # Gateways ping every few seconds to notice a frozen picker. By default, gRPC treats more than two pings in five
    # minutes without data as an attack, and closes the connection with every request on it.
    ("grpc.http2.max_ping_strikes", 0),
    # The streams of a gateway that vanished without closing its connection would stay for ever.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class GrpcListener:
    """Serves `handlers` from `start` until `stop`; call each of the two once.

    Args:
        setting: configuration key of the address, named in errors: `server.extProc`.
        handlers: the services.
        max_message_bytes: longest message received or sent.
        max_streams: calls in progress at once.
        certificates: shown to clients; None for plaintext.
    """

    def __init__(
        self,
        setting: str,
        handlers: Sequence[grpc.GenericRpcHandler],
        *,
        max_message_bytes: int = 4 * 1024 * 1024,
        max_streams: int = DEFAULT_MAX_STREAMS,
        certificates: Certificates | None = None,
    ) -> None:
        self._setting = setting
        self._handlers = handlers
        self._max_message_bytes, self._max_streams = max_message_bytes, max_streams
        self._certificates = certificates
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int, *, is_shared: bool = False) -> int:
        """Listen on `host:port` (port 0: a free one) and return the port.

        Args:
            host: see `acceptor.bind`.
            port: the same.
            is_shared: the same.
        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        server = grpc.aio.server(
            handlers=self._handlers,
            options=(
                *_OPTIONS,
                # By default gRPC shares: a second server on the port would start and take half the connections.
                ("grpc.so_reuseport", int(is_shared)),
                ("grpc.max_concurrent_streams", self._max_streams),
                ("grpc.max_receive_message_length", self._max_message_bytes),
                ("grpc.max_send_message_length", self._max_message_bytes),
            ),
            maximum_concurrent_rpcs=self._max_streams,
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificates is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, server_credentials(self._certificates))
        except RuntimeError as error:
            raise ListenError(
                f"{self._setting}: cannot listen on {address}: in use, or not an address of this machine; "
                f"stop what listens there, or set {self._setting} to another HOST:PORT"
            ) from error
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, wait at most `grace_s` seconds for those in progress, and cancel the rest."""
        if self._server is not None:
            await self._server.stop(grace_s)


def reflection(services: Sequence[str]) -> grpc.GenericRpcHandler:
    """Return the service that describes `services` and itself."""
    servicer: Any = aio.ReflectionServicer((*services, SERVICE_NAME))  # has no type stubs
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        ServerReflectionRequest.FromString,
        ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE_NAME, {"ServerReflectionInfo": method})
