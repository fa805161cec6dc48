"""An identity in the form that HTTP servers take."""

from __future__ import annotations

import os
import ssl

from ...configs.listeners import TlsConfig
from .certificates import Certificates, Identity


def http_context(config: TlsConfig, certificates: Certificates | None) -> ssl.SSLContext | None:
    """What `rest` and `metrics` show, None to talk in the clear.

    Args:
        config: `server.tls`; a certificate that nobody asked for, made because the reference makes one, is for `extProc`.
        certificates: the identity of the listeners, None without one.
    """
    is_asked_for = config.http and (bool(config.cert_file) or config.self_signed is True)
    return server_context(certificates) if certificates is not None and is_asked_for else None


def server_context(certificates: Certificates, *, protocol: str = "http/1.1") -> ssl.SSLContext:
    """A context whose new connections always see the certificate as it is then.

    Args:
        certificates: the identity.
        protocol: what is spoken inside, by its ALPN name.
    """
    told = certificates.current()
    first = newest = _context(told, protocol)

    def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, *_: object) -> None:
        nonlocal told, newest
        identity = certificates.current()
        if identity is not told:
            told, newest = identity, _context(identity, protocol)
        connection.context = newest

    first.sni_callback = renew  # called for clients that name no server too
    return first


def _context(identity: Identity, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would pass by a certificate or a client CA that has changed since.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols([protocol])
    _load_pair(context, identity)
    if identity.client_ca is not None:
        context.load_verify_locations(cadata=identity.client_ca.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_pair(context: ssl.SSLContext, identity: Identity) -> None:
    """Loads key and chain, for which the library wants a file: one that is in memory alone."""
    with os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb") as file:
        file.write(identity.key + b"\n" + identity.chain)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
