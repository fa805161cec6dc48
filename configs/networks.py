"""Networks in configuration files: lists of those whose addresses are allowed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_network(text: str) -> Network:
    """Parse `10.0.0.0/8`, or one address.

    Raises:
        ValueError: not of that form, or bits outside of the network are set.
    """
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            f"found {text!r}, expected a network such as 10.0.0.0/8 or fd00::/8, with zeros after it"
        ) from None


def allows(networks: Iterable[Network], host: str) -> bool:
    """Return whether `host` is an address in one of the networks; a name never is, since it can change its address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
