"""The file that lists the endpoints in place of `endpoints.static`: as a list of our own, or as the reference picker has it."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace as replace_fields

from .checks import endpoint_problems
from .decode import decode
from .errors import ConfigError, KeyPath, Problem
from .reading import read_document
from .schema import EventsConfig, KVAtlasConfig, StaticEndpoint
from .section import Port, Section

DEFAULT_NAMESPACE = "default"


class _OwnFile(Section, frozen=True):
    """A list at the top of the file, with the keys of `endpoints.static`."""

    endpoints: tuple[StaticEndpoint, ...]


class ListedEndpoint(Section, frozen=True):
    """One server as the reference picker's `file-discovery` lists it. Source: llm-d-router, discovery/file/plugin.go."""

    name: Annotated[str, Meta(min_length=1)]
    """Unique in its namespace."""
    address: Annotated[str, Meta(min_length=1)]
    """IP address, or a host name, which the reference picker does not take."""
    port: Annotated[str, Meta(min_length=1)] | Port
    """Port that serves requests."""
    namespace: str = DEFAULT_NAMESPACE
    """Set before the name when it is not `default`."""
    metrics_host: str = ""
    """`HOST:PORT` that serves /metrics; absent: where requests are served."""
    labels: dict[str, str] = {}
    """Free labels."""

    def static(self) -> StaticEndpoint:
        """The same in our form."""
        is_default = self.namespace in ("", DEFAULT_NAMESPACE)
        return StaticEndpoint(
            name=self.name if is_default else f"{self.namespace}/{self.name}",
            address=f"{_host(self.address)}:{self.port}",
            metrics=f"http://{self.metrics_host}/metrics" if self.metrics_host else None,
            labels=self.labels,
        )


class _ReferenceFile(Section, frozen=True):
    """A mapping with the one key `endpoints`."""

    endpoints: tuple[ListedEndpoint, ...]


def with_listed_endpoints(config: KVAtlasConfig) -> KVAtlasConfig:
    """The configuration with what its `endpoints.file` lists, if it names one, in `endpoints.static`.

    Raises:
        ConfigError: as `read_endpoints`.
    """
    endpoints = config.endpoints
    if not endpoints.file:
        return config
    listed = read_endpoints(endpoints.file, config.events)
    return replace_fields(config, endpoints=replace_fields(endpoints, static=listed))


def read_endpoints(path: str | Path, events: EventsConfig) -> tuple[StaticEndpoint, ...]:
    """The endpoints in the file `path`.

    Raises:
        ConfigError: the file cannot be read, or says something impossible; with every problem, its line and key.
    """
    document = read_document(path)
    is_own = isinstance(document.data, list)
    base: KeyPath = () if is_own else ("endpoints",)
    endpoints = _own(document.data) if is_own else _reference(document.data)
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


def _reference(data: object) -> tuple[StaticEndpoint, ...] | list[Problem]:
    decoded = decode(data, _ReferenceFile)
    return decoded if isinstance(decoded, list) else tuple(each.static() for each in decoded.endpoints)


def _host(text: str) -> str:
    """The host as addresses write it: IPv6 in brackets."""
    try:
        return f"[{ipaddress.IPv6Address(text)}]"
    except ipaddress.AddressValueError:
        return text
