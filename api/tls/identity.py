"""What a listener shows its clients, and asks of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Key and certificate of a listener, and the authorities of its clients.

    Attributes:
        key: private key, PEM.
        chain: its certificate and those of its authorities, PEM.
        client_ca: certificates of the clients' authorities, PEM; None admits every client.
        not_after: end of the certificate's validity, wall-clock seconds.
    """

    key: bytes
    chain: bytes
    client_ca: bytes | None
    not_after: float
