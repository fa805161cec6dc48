"""Prometheus series of the fleet that are counted as things happen; docs/metrics.md describes each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .tallies import Tally, Times

_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_WRITE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class FleetMetrics:
    """Counters of applied events and of trust.

    Args:
        registry: gets the series.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._batches = Tally(
            "batches_applied", "Event batches applied to the index.", "endpoint", registry=registry
        )
        self._events = Tally(
            "events_applied", "KV events applied to the index.", "endpoint", registry=registry
        )
        self._rejected = Counter(
            "kvatlas_events_rejected",
            "Messages or events that could not be read.",
            ["endpoint", "reason"],
            registry=registry,
        )
        self._trust = Counter(
            "kvatlas_trust_transitions",
            "Changes of a publisher's trust, by new state.",
            ["state"],
            registry=registry,
        )
        self._snapshots = Counter(
            "kvatlas_event_snapshots",
            "Snapshots requested from publishers that lost events, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._snapshot_seconds = Times(
            "event_snapshot_seconds",
            "Time from the request for a publisher's snapshot until it is applied or refused.",
            _WRITE_SECONDS,
            registry=registry,
        )
        self.event_lag = Times(
            "event_lag_seconds",
            "Receive time minus the publisher's timestamp of live batches.",
            _LAG_SECONDS,
            registry=registry,
        )
        self.index_native = Gauge(
            "kvatlas_index_native", "1 when the index runs in C++, 0 in Python.", registry=registry
        )

    def batches_applied(self, endpoint: str, n_batches: int, *, n_events: int) -> None:
        """Count applied event batches."""
        self._batches.add(endpoint, n_batches)
        self._events.add(endpoint, n_events)

    def event_rejected(self, endpoint: str, reason: str, n_events: int) -> bool:
        """Count unreadable messages or events; return whether they are the first with this reason from the endpoint."""
        counter = self._rejected.labels(endpoint, reason)
        before = next(s.value for m in counter.collect() for s in m.samples if s.name.endswith("_total"))
        counter.inc(n_events)
        return bool(before == 0)

    def trust_changed(self, state: str) -> None:
        """Count a transition of a publisher's trust."""
        self._trust.labels(state).inc()

    def snapshot_ended(self, outcome: str, seconds: float) -> None:
        """Count a snapshot of a publisher."""
        self._snapshots.labels(outcome).inc()
        self._snapshot_seconds.observe(seconds)

    def forget(self, endpoint: str) -> None:
        """Remove the series of an endpoint."""
        for tally in (self._batches, self._events):
            tally.forget(endpoint)
        self._rejected.remove_by_labels({"endpoint": endpoint})


class SnapshotMetrics:
    """Counters of the snapshot file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter("kvatlas_snapshot_writes", "Snapshots written.", registry=registry)
        self.failures = Counter(
            "kvatlas_snapshot_failures", "Snapshots that could not be written.", registry=registry
        )
        self.failing = Gauge(
            "kvatlas_snapshot_failing", "1 when the last write of the snapshot failed.", registry=registry
        )
        self.refused = Counter(
            "kvatlas_snapshot_refused", "Snapshots refused at the start.", ["reason"], registry=registry
        )
        self.age_seconds = Gauge(
            "kvatlas_snapshot_age_seconds",
            "Age of the newest usable snapshot, NaN without one.",
            registry=registry,
        )
        self.size_bytes = Gauge(
            "kvatlas_snapshot_bytes", "Size of the last snapshot written.", registry=registry
        )
        self.write_seconds = Histogram(
            "kvatlas_snapshot_write_seconds", "Time to collect and write a snapshot.",
            buckets=_WRITE_SECONDS, registry=registry,
        )  # fmt: skip
