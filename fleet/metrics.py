"""Prometheus metrics of the process; docs/metrics.md describes each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .tallies import Tally, Times

_FAST_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

_WRITE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Every counter that the shells feed. One instance a process, passed as an argument."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._batches = self._tally("batches_applied", "Event batches taken into the index.", "endpoint")
        self._events = self._tally("events_applied", "KV events taken into the index.", "endpoint")
        self._rejected = self._counter(
            "events_rejected", "Messages or events that could not be read.", "endpoint", "reason"
        )
        self._trust = self._counter(
            "trust_transitions", "Changes of a publisher's trust, by new state.", "state"
        )
        self._picks = self._tally("picks", "Requests sent to an endpoint.", "endpoint")
        self._refusals = self._tally("refusals", "Requests answered without being routed.", "code")
        self._no_prefix = self._tally(
            "prompts_without_prefix", "Routed requests without token ids.", "reason"
        )
        self._prefix_cut = self._tally(
            "prompts_cut", "Routed requests whose token ids are known only at the start.", "reason"
        )
        self._faults = self._counter(
            "plugin_faults", "Plugin answers that had to be repaired.", "plugin", "reason"
        )
        self._stream_errors = self._counter(
            "extproc_stream_errors", "ext-proc streams that failed.", "reason"
        )
        self._remote = self._counter(
            "remote_tokenizations", "Questions to engines for token ids, by how they ended.", "outcome"
        )
        self._prompt_tokens = self._tally("prompt_tokens", "Tokens of routed prompts.")
        self._usable_tokens = self._tally(
            "usable_prefix_tokens", "Prompt tokens cached on the picked endpoint."
        )
        self._config_loads = self._counter(
            "config_loads",
            "Configurations looked at, by where from and what came of it.",
            "source",
            "outcome",
        )
        self.config_generation = Gauge(
            "kvatlas_config_generation", "Generation of the configuration in force.", registry=self.registry
        )
        self.config_refused = Gauge(
            "kvatlas_config_refused", "Files whose present content is not in force.", registry=self.registry
        )
        self.event_lag = Times(
            "event_lag_seconds", "Receive time minus the publisher's time stamp of live batches.", _LAG_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.decision_seconds = Times(
            "decision_seconds",
            "Time from the whole body to the decision.",
            _FAST_SECONDS,
            registry=self.registry,
        )
        self._remote_seconds = Histogram(
            "kvatlas_remote_tokenization_seconds", "Time that questions to engines for token ids took.",
            buckets=_FAST_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.index_native = Gauge(
            "kvatlas_index_native", "1 when the index runs in C++, 0 in Python.", registry=self.registry
        )
        self.ready = Gauge("kvatlas_ready", "1 when requests should be sent here.", registry=self.registry)
        self.snapshot = SnapshotMetrics(self.registry)

    def batch_applied(self, endpoint: str, n_events: int) -> None:
        """An event batch was applied."""
        self._batches.add(endpoint)
        self._events.add(endpoint, n_events)

    def event_rejected(self, endpoint: str, reason: str) -> bool:
        """Something unreadable came; returns whether it is the first of its kind from this endpoint."""
        counter = self._rejected.labels(endpoint, reason)
        counter.inc()
        return bool(
            next(s.value for m in counter.collect() for s in m.samples if s.name.endswith("_total")) == 1
        )

    def trust_changed(self, state: str) -> None:
        """A publisher's trust changed."""
        self._trust.labels(state).inc()

    def picked(self, endpoint: str) -> None:
        """A request was sent to the endpoint."""
        self._picks.add(endpoint)

    def refused(self, code: str) -> None:
        """A request was answered without being routed."""
        self._refusals.add(code)

    def no_prefix(self, reason: str) -> None:
        """A request has no token ids."""
        self._no_prefix.add(reason)

    def plugin_fault(self, plugin: str, reason: str) -> None:
        """A plugin's answer had to be repaired."""
        self._faults.labels(plugin, reason).inc()

    def prefix_cut(self, reason: str) -> None:
        """A request's token ids end before its prompt does."""
        self._prefix_cut.add(reason)

    def prompt_known(self, *, tokens: int, usable: int) -> None:
        """A routed request has token ids, some of them cached on the picked endpoint."""
        self._prompt_tokens.add(n=tokens)
        self._usable_tokens.add(n=usable)

    def remote_tokenized(self, outcome: str, seconds: float) -> None:
        """An engine was asked for token ids, or they were kept from before (`cached`)."""
        self._remote.labels(outcome).inc()
        if outcome != "cached":
            self._remote_seconds.observe(seconds)

    def stream_error(self, reason: str) -> None:
        """An ext-proc stream failed."""
        self._stream_errors.labels(reason).inc()

    def config_loaded(self, source: str, outcome: str) -> None:
        """A configuration was looked at: applied, unchanged or refused."""
        self._config_loads.labels(source, outcome).inc()

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone: its series end."""
        for tally in (self._batches, self._events, self._picks):
            tally.forget(endpoint)
        self._rejected.remove_by_labels({"endpoint": endpoint})

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvatlas_{name}", text, labels, registry=self.registry)

    def _tally(self, name: str, text: str, label: str | None = None) -> Tally:
        return Tally(name, text, label, registry=self.registry)


class SnapshotMetrics:
    """What happens to the snapshot file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter("kvatlas_snapshot_writes", "Snapshots written.", registry=registry)
        self.failures = Counter(
            "kvatlas_snapshot_failures", "Snapshots that could not be written.", registry=registry
        )
        self.refused = Counter(
            "kvatlas_snapshot_refused", "Snapshots not used at the start.", ["reason"], registry=registry
        )
        self.age_seconds = Gauge(
            "kvatlas_snapshot_age_seconds",
            "Age of the newest usable snapshot, NaN for none.",
            registry=registry,
        )
        self.size_bytes = Gauge(
            "kvatlas_snapshot_bytes", "Size of the last snapshot written.", registry=registry
        )
        self.write_seconds = Histogram(
            "kvatlas_snapshot_write_seconds", "Time to write a snapshot, gathering included.",
            buckets=_WRITE_SECONDS, registry=registry,
        )  # fmt: skip


class StateCollector(Collector):
    """Metrics that are read from the fleet's state when scraped, and cost nothing in between.

    Args:
        families: makes the current families.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """The current families."""
        yield from self._families()

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not known before the first collection."""
        return ()


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """An empty gauge family `kvatlas_<name>`."""
    return GaugeMetricFamily(f"kvatlas_{name}", text, labels=labels)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """An empty counter family `kvatlas_<name>_total`."""
    return CounterMetricFamily(f"kvatlas_{name}", text, labels=labels)
