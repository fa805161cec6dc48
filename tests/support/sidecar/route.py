"""Where the headers of a request send it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from multidict import CIMultiDict, CIMultiDictProxy

from support.sidecar.settings import Settings

PREFILL = "x-prefiller-host-port"
ENCODERS = "x-encoder-hosts-ports"
SOURCE = "x-kv-cache-source-host-port"
RANK = "x-data-parallel-host-port"

_OWN = frozenset((PREFILL, ENCODERS, SOURCE))
"""Headers that no leg gets; the one that names a rank is passed on."""

_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)

Headers = CIMultiDict[str]


class Source(NamedTuple):
    """Server from which KV caches are pulled.

    Attributes:
        host: its name or address.
        port: text behind the colon, which may be no number.
    """

    host: str
    port: str


@dataclass(frozen=True)
class Route:
    """What the headers of a request say.

    Attributes:
        prefill: `HOST:PORT` of the prefill server, empty without one.
        encoders: `HOST:PORT` of the encoders, None without the header.
        source: server to pull from, None without one.
        rank: `HOST:PORT` of the data-parallel rank, empty without one.
        headers: of the legs.
    """

    prefill: str
    encoders: tuple[str, ...] | None
    source: Source | None
    rank: str
    headers: Headers


def route_of(headers: CIMultiDictProxy[str], settings: Settings, client: str) -> Route:
    """Read the headers of a request from `client`, an IP address."""
    encoders = headers.getall(ENCODERS, None)
    source = _source(headers.get(SOURCE, "")) if settings.pulls else None
    prefill = _prefill(headers.getall(PREFILL, ()), samples=settings.samples_prefill)
    if source is not None and f"{source.host}:{source.port}" == prefill:
        source = None
    return Route(
        prefill=prefill,
        encoders=tuple(_entries(encoders)) if encoders is not None else None,
        source=source,
        rank=headers.get(RANK, "").strip(),
        headers=passed_on(headers, client, without=_OWN),
    )


def passed_on(headers: CIMultiDictProxy[str], client: str, *, without: Iterable[str] = ()) -> Headers:
    """Return the headers of a request or response that are for its receiver, with `client` as one more hop."""
    dropped = {*_HOP_BY_HOP, *without, "content-length"}
    for value in headers.getall("connection", ()):
        dropped |= {each.strip().lower() for each in value.split(",")}
    # The client library keeps several values of a name only if all have the same letters.
    passed = CIMultiDict(
        (name.lower(), value) for name, value in headers.items() if name.lower() not in dropped
    )
    if "trailers" in headers.get("te", ""):
        passed["te"] = "trailers"
    if client:
        hops = ", ".join((*passed.popall("x-forwarded-for", ()), client))
        passed["x-forwarded-for"] = hops
    return passed


def _prefill(values: Iterable[str], *, samples: bool) -> str:
    lines = [*values]
    if len(lines) == 1:  # several lines are taken as they are, a list in one of them too
        lines = lines[0].split(",")
    if not lines:
        return ""
    return (random.choice(lines) if samples else lines[0]).strip().removeprefix("http://")


def _entries(values: Iterable[str]) -> list[str]:
    lines = [*values]
    entries = lines[0].split(",") if len(lines) == 1 else lines
    return [each.strip().removeprefix("http://") for each in entries]


def _source(value: str) -> Source | None:
    host, colon, port = value.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "/" in host:
        return None
    return Source(host, port) if host and colon and "," not in value else None
