"""Visits to the servers of stages: what answers at their address, and what it says of itself.

Checks read only what is there. Nothing else in the process needs these answers, so they are asked for when somebody
asks the doctor.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ....configs.scraping import ScrapeTlsConfig
from ....fleet.endpoint import Endpoint
from ....fleet.scrape.errors import ScrapeError
from ....fleet.scrape.page import Page
from ....fleet.scrape.tls import tls_context
from .traits import Traits, read_metrics, with_server_info

FRESH_S = 30.0
"""Time for which a visit counts; the dashboard asks as often."""

TIMEOUT_S = 1.0
"""Limit of one answer."""

ROUND_S = 2.0
"""Limit of all visits of one diagnosis; the rest is left to the next one."""

MAX_CONCURRENT = 16

TELLING_PATH = "//health"
"""A sidecar redirects a path with an empty part to the one without, before it looks who is meant; engines have no such
path. Source: the reference's sidecar, recorded; it does so without an engine behind it too."""

_REDIRECTS = (301, 307, 308)
_NO_SUCH_PATH = (401, 404, 405)  # an engine with an API key may ask for that first


class Face(Enum):
    """What answers at an address."""

    SIDECAR = "a sidecar"
    ENGINE = "an engine"
    TLS = "nothing but TLS"
    UNKNOWN = "neither a sidecar nor an engine"


@dataclass(frozen=True, slots=True)
class Visit:
    """What a server answered.

    Attributes:
        url: where it was visited.
        face: what answered there; None if nothing did.
        traits: what it says of itself.
        error: why nothing answered; empty otherwise.
    """

    url: str
    face: Face | None = None
    traits: Traits = field(default_factory=Traits)
    error: str = ""


class Visits:
    """Visits endpoints, each once in a while.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, float, Visit]] = {}
        """Endpoint -> its address, time and result of the visit."""
        self._turn = asyncio.Lock()

    async def of(self, endpoints: Iterable[Endpoint], tls: ScrapeTlsConfig) -> Mapping[str, Visit]:
        """Return the visits of endpoints, by name; those that were not reached in time are absent.

        Args:
            endpoints: those to visit; one that takes no requests is not.
            tls: of endpoints whose metrics are read over https.
        Cost: three requests for each endpoint that was not visited lately.
        """
        wanted = [each for each in endpoints if each.address is not None]
        async with self._turn:
            names = {each.name for each in wanted}
            self._known = {name: known for name, known in self._known.items() if name in names}
            await self._renew([each for each in wanted if not self._is_fresh(each)], tls)
        return {name: visit for name, (_, _, visit) in self._known.items()}

    def _is_fresh(self, endpoint: Endpoint) -> bool:
        address, at, _ = self._known.get(endpoint.name, ("", 0.0, None))
        return address == endpoint.address and self._clock() - at < FRESH_S

    async def _renew(self, endpoints: list[Endpoint], tls: ScrapeTlsConfig) -> None:
        free = asyncio.Semaphore(MAX_CONCURRENT)

        async def one(endpoint: Endpoint) -> None:
            async with free:
                visit = await _visit(endpoint, tls)
            self._known[endpoint.name] = endpoint.address or "", self._clock(), visit

        tasks = [asyncio.ensure_future(one(each)) for each in endpoints]
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=ROUND_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _visit(endpoint: Endpoint, settings: ScrapeTlsConfig) -> Visit:
    metrics = endpoint.addresses.metrics
    scheme = "https" if metrics is not None and metrics.startswith("https:") else "http"
    base = f"{scheme}://{endpoint.address}"
    try:
        tls = tls_context(settings) if scheme == "https" else None
        status, body = await _get(f"{base}{TELLING_PATH}", tls)
    except ScrapeError as error:
        return Visit(base, error=str(error))
    return Visit(base, _face(status, body), await _traits(base, metrics, tls))


def _face(status: int, body: bytes) -> Face:
    if status in _REDIRECTS:
        return Face.SIDECAR
    if status in _NO_SUCH_PATH:
        return Face.ENGINE
    return Face.TLS if status == 400 and b"HTTPS" in body else Face.UNKNOWN


async def _traits(base: str, metrics: str | None, tls: ssl.SSLContext | None) -> Traits:
    """Return what the server says of itself, nothing if it does not answer."""
    traits = Traits()
    try:
        status, body = await _get(metrics or f"{base}/metrics", tls)
        if status != 200:
            return traits
        traits = read_metrics(body)
        if b"\nsglang:" in b"\n" + body:
            status, body = await _get(f"{base}/server_info", tls)
            traits = with_server_info(traits, body) if status == 200 else traits
    except ScrapeError:
        pass
    return traits


async def _get(url: str, tls: ssl.SSLContext | None) -> tuple[int, bytes]:
    page = Page(url, tls)
    try:
        return await page.response(timeout_s=TIMEOUT_S)
    finally:
        page.close()
