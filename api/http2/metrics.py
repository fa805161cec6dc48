"""Prometheus metrics of the transport; docs/metrics.md describes each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ...fleet.tallies import Tally


class TransportMetrics:
    """Counts connections closed and calls refused by a limit.

    Args:
        registry: shows the metrics.

    Attributes:
        deferred: turns that connections had to wait for.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._closed = Tally(
            "extproc_connections_closed",
            "Connections closed by a limit, by which.",
            "reason",
            registry=registry,
        )
        self.deferred = Tally(
            "extproc_turns_deferred",
            "Turns that a connection with much to read had to wait for.",
            registry=registry,
        )
        self._refused = Tally(
            "extproc_calls_refused", "Calls refused by a limit of the transport, by which.", "reason",
            registry=registry,
        )  # fmt: skip

    def closed(self, reason: str) -> None:
        """Count a closed connection."""
        self._closed.add(reason)

    def refused(self, reason: str) -> None:
        """Count a refused call."""
        self._refused.add(reason)
