"""An identity as credentials of gRPC servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import grpc

from .certificates import Certificates
from .identity import Identity


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Return credentials of a server whose new connections use the current certificate."""
    told = certificates.current()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal told
        identity = certificates.current()
        if identity is told:
            return None
        told = identity
        return _configuration(identity)

    # None means unchanged; the library's type stubs lack it.
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", changed)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(told), fetch, require_client_authentication=certificates.asks_clients
    )


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.chain)], identity.client_ca)
