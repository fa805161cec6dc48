"""An Envoy in the pod of this process, whose clients are to move to other pods before both end."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

from ..configs.address import HostPort

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""Longest wait for its admin interface, which is on this machine."""

_LOOK_S = 0.1
_STATS = r"/stats?format=json&filter=^http\..*\.downstream_rq_(active|total)$"
_OWN = "http.admin."


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of its clients.

    Attributes:
        n_active: now in flight.
        n_total: since its start.
    """

    n_active: int
    n_total: int


class Proxy:
    """One Envoy, by its admin interface.

    An Envoy whose health check is failed by hand goes on serving, and closes each connection with its next response: so
    clients with a kept connection come back through the Service. It must end only after this process.

    Args:
        address: `HOST:PORT` of its admin interface; empty if there is no Envoy.
    """

    def __init__(self, address: str) -> None:
        self._address = HostPort.parse(address) if address else None

    async def keep_connections(self) -> None:
        """Have connections kept: an earlier process of this pod may have had them closed."""
        await self._ask("POST", "/healthcheck/ok")

    async def close_connections(self) -> bool:
        """Have each connection closed with its next response; return whether Envoy does so."""
        is_done = await self._ask("POST", "/healthcheck/fail") is not None
        if self._address is not None and not is_done:
            log.warning(
                "server.proxyAdmin: no answer from %s:%d: clients keep their connections to its Envoy, and requests on "
                "them fail once this process has ended; does Envoy run, and is its admin interface there?",
                self._address.host, self._address.port,
            )  # fmt: skip
        return is_done

    async def until_quiet(self, quiet_s: float, *, limit_s: float) -> None:
        """Wait until no request was in flight for `quiet_s`, or Envoy does not answer; at most `limit_s`."""
        began, quiet_since, n_total = time.monotonic(), 0.0, -1
        while (now := time.monotonic()) < began + limit_s:
            traffic = _traffic(await self._ask("GET", _STATS))
            if traffic is None:
                return
            if traffic.n_active or traffic.n_total != n_total:
                quiet_since, n_total = now, traffic.n_total
            elif now >= quiet_since + quiet_s:
                return
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, method: str, path: str) -> bytes | None:
        """Return the body of its answer; None if there is none with status 200."""
        return await asyncio.to_thread(_answer, self._address, method, path) if self._address else None


def _answer(address: HostPort, method: str, path: str) -> bytes | None:
    connection = HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path)
        with connection.getresponse() as response:
            body = response.read()
            return body if response.status == 200 else None
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _traffic(stats: bytes | None) -> Traffic | None:
    """Return the sums over its listeners; None if the answer is none of Envoy's."""
    if stats is None:
        return None
    try:
        counts = [(each["name"], int(each["value"])) for each in json.loads(stats)["stats"]]
    except (ValueError, TypeError, KeyError):
        return None
    counts = [(name, count) for name, count in counts if not name.startswith(_OWN)]
    return Traffic(
        sum(count for name, count in counts if name.endswith("_active")),
        sum(count for name, count in counts if name.endswith("_total")),
    )
