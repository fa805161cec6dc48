"""The budget of file descriptors: what the process needs itself, and how many connections the rest allows."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.endpoints import endpoint_addresses
from ..configs.schema import KVAtlasConfig

OWN = 64
"""Descriptors of the process itself: event loop, files, logs, sockets of workers, API server and reading threads."""

HEALTH = 64
"""Connections of `server.health`, whose library has no limit of its own."""

PER_RANK = 5
"""Descriptors of one followed rank: four of its connection, and its share in those of replays."""

PER_ENDPOINT = 3
"""Connections to one endpoint: scraping, token ids, and one that is being replaced."""

FEWEST = 8
"""Connections that every listener gets at least."""


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """The shares of a process in its limit.

    Attributes:
        limit: descriptors that the process may open.
        reserved: of these, kept for the process and its fleet.
        wanted: configuration key of a listener -> connections as configured.
        connections: the same keys -> connections that fit; less than wanted if the limit is too small.
    """

    limit: int
    reserved: int
    wanted: Mapping[str, int]
    connections: Mapping[str, int]

    @property
    def needed(self) -> int:
        """The limit with which everything fits."""
        return self.reserved + sum(self.wanted.values())

    @property
    def shortage(self) -> str | None:
        """A sentence for people if the limit is too small; None if it suffices."""
        if self.limit >= self.needed:
            return None
        cut = ", ".join(f"{name} {n}" for name, n in self.connections.items())
        return (
            f"the process may open {self.limit} descriptors and needs {self.needed}: raise the limit "
            f"(ulimit -n, LimitNOFILE); until then connections are limited to: {cut}"
        )


def wanted_connections(config: KVAtlasConfig) -> dict[str, int]:
    """Return the configured number of connections of each listener that is on."""
    server = config.server
    wanted = {
        "server.extProc": (server.ext_proc, config.ext_proc.max_connections),
        "server.rest": (server.rest, config.rest.max_connections),
        "server.metrics": (server.metrics, config.rest.max_connections),
    }
    return {name: n for name, (address, n) in wanted.items() if address}


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def descriptor_budget(
    limit: int, wanted: Mapping[str, int], *, n_ranks: int, n_endpoints: int
) -> DescriptorBudget:
    """Divide `limit`: first what the fleet needs, then the connections of each listener in proportion.

    Args:
        limit: descriptors that the process may open; negative: as many as it likes.
        wanted: configuration key of a listener -> connections as configured.
        n_ranks: ranks whose events are received.
        n_endpoints: endpoints that are scraped.
    """
    reserved = OWN + HEALTH + PER_RANK * n_ranks + PER_ENDPOINT * n_endpoints
    total = sum(wanted.values())
    limit = limit if limit >= 0 else reserved + total
    left = max(0, limit - reserved)
    connections = {
        name: n if left >= total else max(min(n, FEWEST), n * left // total) for name, n in wanted.items()
    }
    return DescriptorBudget(limit, reserved, wanted, connections)


def process_budget(
    config: KVAtlasConfig, *, n_ranks: int | None = None, n_endpoints: int | None = None
) -> DescriptorBudget:
    """Return the budget of this process.

    Args:
        config: its configuration.
        n_ranks: as in `descriptor_budget`; None for the ranks in the configuration, found ones not included.
        n_endpoints: the same.
    """
    static = config.endpoints.static
    if n_ranks is None:
        n_ranks = sum(len(endpoint_addresses(endpoint, config.events).ranks) for endpoint in static)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return descriptor_budget(
        limit,
        wanted_connections(config),
        n_ranks=n_ranks,
        n_endpoints=len(static) if n_endpoints is None else n_endpoints,
    )
