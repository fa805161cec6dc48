"""What a configuration allows of TLS, in OpenSSL's terms."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from ...configs.listeners import CIPHER_SUITES

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""Versions by their names in a configuration."""


def cipher_list(names: Iterable[str]) -> str:
    """Return OpenSSL's form of cipher suites of TLS 1.2; those of TLS 1.3 are not among them."""
    return ":".join(CIPHER_SUITES[name] for name in names)
