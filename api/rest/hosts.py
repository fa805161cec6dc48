"""Names in the headers Host and Origin: those of kvatlas, and those of other sites."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

_CLUSTER = (".svc", ".cluster.local")
"""Ends of the names of Services and pods. Nobody can own such a name in the public DNS."""


class HostNames:
    """The names under which browsers may reach this process.

    A page of another site can have its own name resolve to this process (DNS rebinding). Its calls then have that name
    in the header Host. An attacker can own neither an IP address in that place, nor a name without dots.

    Args:
        allowed: further names; `*.` in front of one allows every name below it, and `*` alone every name.
        own: names of this machine.
    """

    def __init__(self, allowed: Iterable[str], *, own: Iterable[str] = ()) -> None:
        names = {name.lower().removesuffix(".") for name in (*allowed, *own)}
        self._any = "*" in names
        self._names = frozenset(name for name in names if not name.startswith("*"))
        self._ends = (*_CLUSTER, *(name[1:] for name in names if name.startswith("*.")))

    def has(self, header: str) -> bool:
        """Return whether a header Host names this process. Cost: one comparison for each `*.` entry."""
        name = _name(header)
        return (
            self._any
            or name in self._names
            or (bool(name) and ("." not in name or name.endswith(self._ends) or _is_ip(name)))
        )

    def is_own_page(self, origin: str, host: str) -> bool:
        """Return whether a header Origin names a page of this process; `host` is the header Host of the call.

        The scheme does not count: a proxy may end TLS. A proxy that renames the host keeps Origin as it is, so that
        allowed names count too.
        """
        try:
            authority = urlsplit(origin).netloc
        except ValueError:  # a broken IPv6 address
            return False
        name = _name(authority)
        return bool(name) and (
            authority.lower() == host.lower() or name in self._names or name.endswith(self._ends)
        )


def _name(authority: str) -> str:
    """Return the host of `HOST[:PORT]` in lower case, without brackets and final dot."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower().removesuffix(".")


@lru_cache(maxsize=64)
def _is_ip(name: str) -> bool:
    # Callers repeat a few names, and reading an address takes a tenth of the time of a short query.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
