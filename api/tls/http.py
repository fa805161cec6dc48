"""An identity as TLS contexts of HTTP servers."""

from __future__ import annotations

import ssl

from ...configs.listeners import TlsConfig
from .certificates import Certificates
from .context import make_context
from .mismatches import OnMismatch, handshakes, ignore


def http_context(
    config: TlsConfig, certificates: Certificates | None, on_mismatch: OnMismatch = ignore
) -> ssl.SSLContext | None:
    """Return the TLS context of `rest` and `metrics`, None for plain text.

    Args:
        config: `server.tls`; a certificate that is made only because the reference makes one is for `extProc` alone.
        certificates: the identity of the listeners, None without one.
        on_mismatch: see `server_context`.
    """
    is_asked_for = config.http and (bool(config.cert_file) or config.self_signed is True)
    return (
        server_context(certificates, on_mismatch=on_mismatch)
        if certificates is not None and is_asked_for
        else None
    )


def server_context(
    certificates: Certificates, *, protocol: str = "http/1.1", on_mismatch: OnMismatch = ignore
) -> ssl.SSLContext:
    """Return a context whose new connections use the current certificate.

    Args:
        certificates: the identity.
        protocol: ALPN name of the application protocol.
        on_mismatch: called for each connection whose peer speaks plain text.
    """
    told = certificates.current()
    config = certificates.config
    first = newest = make_context(told, config, protocol)
    first.sslobject_class = handshakes(on_mismatch)

    def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, *_: object) -> None:
        nonlocal told, newest
        identity = certificates.current()
        if identity is not told:
            told, newest = identity, make_context(identity, config, protocol)
        connection.context = newest

    first.sni_callback = renew  # called for clients without a server name too
    return first
