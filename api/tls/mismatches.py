"""Peers that speak plain text to a listener with TLS, or TLS to one without."""

from __future__ import annotations

import logging
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

log = logging.getLogger(__name__)

Spoken = Literal["plaintext", "tls"]
"""What the peer speaks, while the listener speaks the other."""

OnMismatch = Callable[[Spoken], None]

REMEDIES: dict[Spoken, str] = {
    "plaintext": "let it use TLS (Istio: a DestinationRule with tls.mode SIMPLE), or switch TLS off here "
    "(--secure-serving=false for server.extProc, server.tls)",
    "tls": "switch TLS on here (--secure-serving=true for server.extProc, server.tls), or let it use plain text",
}
"""The two ways to agree."""

_PLAINTEXT_REASONS = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER"})
"""OpenSSL's reasons for a first record that is none: an HTTP/1 method, and anything else such as HTTP/2's preface."""

_CLIENT_HELLO = b"\x16\x03"
"""Start of every TLS connection: a handshake record of version 3."""


class Mismatches:
    """Counts the connections of such peers, and logs the first one of each kind at each listener.

    Attributes:
        counts: listener's configuration key and what the peer spoke -> connections.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Spoken]] = Counter()

    def at(self, listener: str) -> OnMismatch:
        """Return the callback for the listener with that configuration key."""
        return partial(self._found, listener)

    def _found(self, listener: str, spoken: Spoken) -> None:
        self.counts[listener, spoken] += 1
        if self.counts[listener, spoken] == 1:
            log.warning("%s: %s", listener, _told(spoken))


def _told(spoken: Spoken) -> str:
    said = (
        "a peer speaks plain text, but this listener speaks TLS"
        if spoken == "plaintext"
        else "a peer speaks TLS, but this listener speaks plain text"
    )
    return f"{said}: the connection fails, and so does every request on it; {REMEDIES[spoken]}"


def ignore(_spoken: Spoken) -> None:
    """Do nothing about a mismatch."""


def is_tls(data: bytes) -> bool:
    """Return whether the first bytes of a connection begin a TLS handshake."""
    return data.startswith(_CLIENT_HELLO)


def handshakes(on_mismatch: OnMismatch) -> type[ssl.SSLObject]:
    """Return a class for `SSLContext.sslobject_class` whose handshakes report peers that speak plain text."""

    class Handshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except ssl.SSLError as error:
                if error.reason in _PLAINTEXT_REASONS:
                    on_mismatch("plaintext")
                raise

    return Handshake
