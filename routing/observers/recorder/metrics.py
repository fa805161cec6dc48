"""The recorder as Prometheus families, read when scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ....fleet.families import counter, gauge
from .recorder import Recorder


def recorder_families(recorder: Recorder | None) -> Iterator[Metric]:
    """Yield counts of recorded requests, and the size of the traces; without samples if nothing is recorded."""
    requests = counter("recorder_requests", "Routed requests by what became of their record.", "outcome")
    unknown = counter("recorder_unknown_outputs", "Recorded requests whose output is not known.")
    failing = gauge("recorder_failing", "1 when the trace could not be written at the last try.")
    waiting = gauge("recorder_waiting_requests", "Requests that wait to be written.")
    size = gauge("recorder_bytes", "Size of all traces in the folder.")
    if recorder is not None:
        for fate, count in recorder.fates.items():
            requests.add_metric([fate.value], count)
        unknown.add_metric([], recorder.n_without_output)
        failing.add_metric([], float(bool(recorder.failure)))
        waiting.add_metric([], recorder.n_waiting)
        size.add_metric([], recorder.files.size_bytes)
    yield from (requests, unknown, failing, waiting, size)
