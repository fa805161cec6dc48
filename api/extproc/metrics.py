"""Prometheus metrics of ext-proc streams; docs/metrics.md describes each."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import Metric

from ...fleet.families import StateCollector, gauge
from ...fleet.tallies import Tally, Times
from ...routing.attainment import attained
from ...routing.outcome import Completion, Outcome, Usage, UsageGap
from .intake import Intake
from .stream import StreamReports

_FIRST_BYTE_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

MAX_MODELS = 64
"""Most models with their own series of objectives."""

MAX_MODEL_CHARS = 100
"""Longest model name in a label; longer ones are cut."""

OTHER_MODELS = "(other)"
"""Label of all further models."""


class StreamMetrics:
    """Counts finished requests and the usage that their responses report.

    Args:
        registry: shows the metrics.
        intake: read when scraped.
    """

    def __init__(self, registry: CollectorRegistry, intake: Intake) -> None:
        def counter(name: str, text: str, label: str | None = None) -> Tally:
            return Tally(name, text, label, registry=registry)

        self._requests = counter("requests", "Requests that ended, by how.", "outcome")
        self._responses = counter("responses", "Responses seen, by their status.", "status")
        self._served = counter("responses_served", "Responses seen, by whom they came from.", "by")
        self._prompt_tokens = counter("response_prompt_tokens", "Prompt tokens that engines counted.")
        self._cached_tokens = counter("response_cached_tokens", "Of these, found in the engine's cache.")
        self._output_tokens = counter("response_output_tokens", "Generated tokens that engines counted.")
        self._gaps = counter("responses_without_usage", "Answers whose tokens are not known.", "reason")
        self._first_byte = Times(
            "response_first_byte_seconds", "Time from the decision to the first byte of the response.",
            _FIRST_BYTE_SECONDS, registry=registry,
        )  # fmt: skip
        self._errors = Counter(
            "kvatlas_extproc_stream_errors", "ext-proc streams that failed.", ["reason"], registry=registry
        )
        self._objectives = Counter(
            "kvatlas_slo_requests",
            "Objectives that routed requests named, by what became of them.",
            ["objective", "outcome", "model"],
            registry=registry,
        )
        self._models: set[str] = set()
        registry.register(StateCollector(lambda: _intake_families(intake)))

    def failed(self, reason: str) -> None:
        """Count a stream that failed."""
        self._errors.labels(reason).inc()

    def completed(self, completion: Completion) -> None:
        """Count a request that ended."""
        self._requests.add(completion.outcome)
        response = completion.response
        if response.status is not None:
            self._responses.add(f"{response.status // 100}xx")
            self._served.add(_served_by(completion))
        if response.time_to_first_byte_s is not None:
            self._first_byte.observe(response.time_to_first_byte_s)
        for objective, outcome in attained(completion):
            self._objectives.labels(objective.value, outcome.value, self._model(completion)).inc()
        if response.usage is not None:
            self._count_usage(response.usage, has_ended=completion.outcome is Outcome.COMPLETED)

    def counted(self, reports: StreamReports) -> StreamReports:
        """Return callbacks that count each event before they call those of `reports`."""

        def failed(reason: str) -> None:
            self.failed(reason)
            reports.on_error(reason)

        def completed(completion: Completion) -> None:
            self.completed(completion)
            reports.on_complete(completion)

        return StreamReports(failed, reports.on_begun, completed, reports.on_named)

    def _model(self, completion: Completion) -> str:
        """Return the model that a request named, or `OTHER_MODELS`: clients choose the names."""
        model = completion.route.decision.model[:MAX_MODEL_CHARS] if completion.route is not None else ""
        if model not in self._models and len(self._models) == MAX_MODELS:
            return OTHER_MODELS
        self._models.add(model)
        return model

    def _count_usage(self, usage: Usage | UsageGap, *, has_ended: bool) -> None:
        match usage:
            case Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output):
                self._prompt_tokens.add(n=prompt or 0)
                self._cached_tokens.add(n=cached or 0)
                self._output_tokens.add(n=output or 0)
            case UsageGap() as gap if has_ended:
                self._gaps.add(gap.value)
            case _:
                pass


def _served_by(completion: Completion) -> str:
    """Return which endpoint served, as the gateway reports it: picked, fallback, other, or untold."""
    if completion.served is None or completion.route is None:
        return "untold"
    first, *fallbacks = completion.route.addresses
    if completion.served == first:
        return "picked"
    return "fallback" if completion.served in fallbacks else "other"


def _intake_families(intake: Intake) -> Iterator[Metric]:
    intake.refresh_all()
    pending = gauge("pending_requests", "Requests being collected or routed.")
    pending.add_metric([], intake.n_requests)
    held = gauge("held_bytes", "Bytes of bodies, partial messages and unsent answers held.")
    held.add_metric([], intake.n_bytes)
    streams = gauge("open_streams", "Ext-proc streams.")
    streams.add_metric([], intake.n_streams)
    yield from (pending, held, streams)
