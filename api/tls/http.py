"""An identity as TLS contexts of HTTP servers."""

from __future__ import annotations

import os
import ssl

from ...configs.listeners import TlsConfig
from .certificates import Certificates, Identity
from .mismatches import OnMismatch, handshakes, ignore
from .restrictions import VERSIONS, cipher_list


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
    first = newest = _context(told, config, protocol)
    first.sslobject_class = handshakes(on_mismatch)

    def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, *_: object) -> None:
        nonlocal told, newest
        identity = certificates.current()
        if identity is not told:
            told, newest = identity, _context(identity, config, protocol)
        connection.context = newest

    first.sni_callback = renew  # called for clients without a server name too
    return first


def _context(identity: Identity, config: TlsConfig, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[config.min_version]
    if config.cipher_suites:  # those of TLS 1.3 stay
        context.set_ciphers(cipher_list(config.cipher_suites))
    # A resumed session would bypass a certificate or client CA that has changed since.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols([protocol])
    _load_pair(context, identity)
    if identity.client_ca is not None:
        context.load_verify_locations(cadata=identity.client_ca.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_pair(context: ssl.SSLContext, identity: Identity) -> None:
    """Load key and chain; the library needs a file, which is in memory only."""
    with os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb") as file:
        file.write(identity.key + b"\n" + identity.chain)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
