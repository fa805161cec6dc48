"""Where the other replicas listen: a list, or a name that resolves to all of them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable

from .mesh import Discovery

log = logging.getLogger(__name__)

RESOLVE_S = 5.0
"""Interval of looking a name up. Siblings that are new connect here by themselves, so this only repairs."""

OnAddresses = Callable[[frozenset[str]], None]


def listed(addresses: Iterable[str]) -> Discovery:
    """Return the discovery of fixed ZMQ addresses."""
    found = frozenset(addresses)

    async def discover(on_addresses: OnAddresses) -> None:
        on_addresses(found)

    return discover


def resolved(host: str, port: int) -> Discovery:
    """Return the discovery of all addresses that a name has in DNS, such as that of a headless Service.

    A lookup that fails changes nothing: the replicas that are known stay.
    """

    async def discover(on_addresses: OnAddresses) -> None:
        said = ""
        while True:
            try:
                hosts = await _lookup(host)
            except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
                if said != (said := str(error)):
                    log.warning("replicas: cannot resolve %s: %s; it is tried again", host, said)
            else:
                said = ""
                on_addresses(frozenset(tcp_address(each, port) for each in hosts))
            await asyncio.sleep(RESOLVE_S)

    return discover


def tcp_address(host: str, port: int) -> str:
    """Return the ZMQ address of an IP address and a port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


async def _lookup(host: str) -> list[str]:
    """Return the IP addresses of one family, so that no replica is found twice: IPv4 if there are any."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return sorted({str(address[0]) for each, _, _, _, address in found if each == family})
