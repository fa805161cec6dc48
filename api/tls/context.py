"""TLS contexts of Python's library that show an identity."""

from __future__ import annotations

import os
import ssl

from ...configs.listeners import TlsConfig
from .identity import Identity
from .restrictions import VERSIONS, cipher_list


def make_context(identity: Identity, config: TlsConfig, protocol: str) -> ssl.SSLContext:
    """Return a context that shows an identity.

    Args:
        identity: shown to clients.
        config: restricts them.
        protocol: ALPN name of the application protocol.

    Raises:
        ssl.SSLError: OpenSSL refuses the identity, such as for a key that is too short.
    """
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
        # the library takes ASCII alone, and comments between certificates may be anything
        context.load_verify_locations(cadata=identity.client_ca.decode("ascii", "ignore"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_pair(context: ssl.SSLContext, identity: Identity) -> None:
    """Load key and chain; the library needs a file, which is in memory only."""
    with os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb") as file:
        file.write(identity.key + b"\n" + identity.chain)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
