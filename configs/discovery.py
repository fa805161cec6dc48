"""Files that list the endpoints instead of `endpoints.static`, in the format of kvatlas or of the reference picker."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace as replace_fields

from .checks import endpoint_problems
from .decode import decode
from .endpoints import DEFAULT_SCRAPE
from .errors import ConfigError, KeyPath, Problem
from .reading import read_document
from .schema import EventsConfig, KVAtlasConfig, StaticEndpoint
from .scraping import MetricsScrapeConfig
from .section import Port, Section

DEFAULT_NAMESPACE = "default"

METRICS_ADDRESS, METRICS_PORT = "metricsAddress", "metricsPort"
"""Labels of an endpoint that is a cluster, with the address and port of its picker's metrics."""


class _OwnFile(Section, frozen=True):
    """File in the format of kvatlas: a list with the keys of `endpoints.static`."""

    endpoints: tuple[StaticEndpoint, ...]


class ListedEndpoint(Section, frozen=True):
    """One server in the format of the reference picker's `file-discovery`. Source: llm-d-router, discovery/file/plugin.go."""

    name: Annotated[str, Meta(min_length=1)]
    """Unique in its namespace."""
    address: Annotated[str, Meta(min_length=1)]
    """IP address or host name; the reference picker accepts only IP addresses."""
    port: Annotated[str, Meta(min_length=1)] | Port
    """Serving port."""
    namespace: str = DEFAULT_NAMESPACE
    """Prefix of the name if it is not `default`."""
    metrics_host: str = ""
    """`HOST:PORT` that serves /metrics; absent: the serving address."""
    labels: dict[str, str] = {}
    """Labels, with any names."""

    def static(self, scrape: MetricsScrapeConfig) -> StaticEndpoint:
        """Return the same server as an entry of `endpoints.static`."""
        is_default = self.namespace in ("", DEFAULT_NAMESPACE)
        place = self.metrics_host
        if METRICS_ADDRESS in self.labels or METRICS_PORT in self.labels:
            host = _host(self.labels.get(METRICS_ADDRESS, self.address))
            place = f"{host}:{self.labels.get(METRICS_PORT, self.port)}"
        return StaticEndpoint(
            name=self.name if is_default else f"{self.namespace}/{self.name}",
            address=f"{_host(self.address)}:{self.port}",
            metrics=scrape.url_at(place) if place else None,
            labels=self.labels,
        )


class _ReferenceFile(Section, frozen=True):
    """File in the format of the reference picker: a mapping with the one key `endpoints`."""

    endpoints: tuple[ListedEndpoint, ...]


def with_listed_endpoints(config: KVAtlasConfig) -> KVAtlasConfig:
    """Return the configuration with the servers of its `endpoints.file`, if it names one, in `endpoints.static`.

    Raises:
        ConfigError: see `read_endpoints`.
    """
    endpoints = config.endpoints
    if not endpoints.file:
        return config
    listed = read_endpoints(endpoints.file, config.events, config.metrics_scrape)
    return replace_fields(config, endpoints=replace_fields(endpoints, static=listed))


def read_endpoints(
    path: str | Path, events: EventsConfig, scrape: MetricsScrapeConfig = DEFAULT_SCRAPE
) -> tuple[StaticEndpoint, ...]:
    """Read the endpoints in the file `path`.

    Raises:
        ConfigError: the file cannot be read or has problems; names each with its line and key.
    """
    document = read_document(path)
    is_own = isinstance(document.data, list)
    base: KeyPath = () if is_own else ("endpoints",)
    endpoints = _own(document.data) if is_own else _reference(document.data, scrape)
    problems = endpoints if isinstance(endpoints, list) else list(endpoint_problems(base, endpoints, events))
    if isinstance(endpoints, list) or problems:
        placed = [replace(each, line=document.line_of(each.path)) for each in problems]
        raise ConfigError(str(path), sorted(placed, key=lambda each: each.line or 0))
    return endpoints


def _own(data: object) -> tuple[StaticEndpoint, ...] | list[Problem]:
    decoded = decode({"endpoints": data}, _OwnFile)
    if isinstance(decoded, list):
        return [replace(problem, path=problem.path[1:]) for problem in decoded]
    return decoded.endpoints


def _reference(data: object, scrape: MetricsScrapeConfig) -> tuple[StaticEndpoint, ...] | list[Problem]:
    decoded = decode(data, _ReferenceFile)
    return decoded if isinstance(decoded, list) else tuple(each.static(scrape) for each in decoded.endpoints)


def _host(text: str) -> str:
    """Return the host for an address, with brackets around IPv6."""
    try:
        return f"[{ipaddress.IPv6Address(text)}]"
    except ipaddress.AddressValueError:
        return text
