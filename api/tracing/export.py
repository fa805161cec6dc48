"""The way of spans to their receiver: a bounded queue, and a thread that sends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ...events.line_limit import LineLimit
from .counts import SpanCounts

log = logging.getLogger(__name__)

ABORT_S = 0.5
"""Longest wait for an export that was aborted. One over HTTP cannot be, and is left."""


class BoundedProcessor(SpanProcessor):
    """Hands spans that have ended to the thread that sends them; drops them if too many wait.

    Args:
        exporter: sends spans.
        counts: counts them.
        receiver: URL for the log.
        limit: most spans that wait.
    """

    def __init__(self, exporter: SpanExporter, counts: SpanCounts, *, receiver: str, limit: int) -> None:
        self._exporter, self._counts, self._limit = exporter, counts, limit
        self._receiver, self._lines = receiver, LineLimit()
        # Its own bound is never reached, since `admit` counts what is being sent too.
        self._batches = BatchSpanProcessor(_Counting(exporter, counts, receiver), max_queue_size=limit)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See `SpanProcessor`."""

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`. Cost: no I/O, about 1 us."""
        if self._counts.admit(self._limit):
            self._batches.on_end(span)
        elif (more := self._lines.line(time.monotonic())) is not None:
            log.warning(
                "%d spans wait for %s, which takes them too slowly or not at all; further ones are dropped, and counted in "
                "kvatlas_spans_total%s",
                self._limit, self._receiver, more,
            )  # fmt: skip

    def end(self, *, within_s: float) -> None:
        """Send the spans that wait, at most for that long, and stop. To be called in a thread."""
        # The library waits 30 s for an export, and has no other limit; its threads end with the process.
        ending = threading.Thread(target=self._batches.shutdown, daemon=True)
        ending.start()
        ending.join(within_s)
        if ending.is_alive():
            self._exporter.shutdown()  # aborts a call over gRPC
            ending.join(ABORT_S)


class _Counting(SpanExporter):
    """Counts what an exporter did, and logs when that changes."""

    def __init__(self, exporter: SpanExporter, counts: SpanCounts, receiver: str) -> None:
        self._exporter, self._counts, self._receiver = exporter, counts, receiver
        self._last: SpanExportResult | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            is_sent = result is SpanExportResult.SUCCESS
            self._counts.left("sent" if is_sent else "failed", len(spans))
            if result is not self._last:
                self._last = result
                if is_sent:
                    log.info("spans are sent to %s", self._receiver)
                else:
                    log.warning(
                        "spans cannot be sent to %s; kvatlas_spans_total counts those that are lost",
                        self._receiver,
                    )
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)
