"""A router whose requests have spans."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from ...routing.control_headers import traceparent
from ...routing.outcome import Completion, Outcome, Usage
from ...routing.router import LocalResponse, Refusal, Route, Router, RoutingRequest, RoutingResult
from ...tokenization.eventual import Eventual
from .spans import SpanWriter

_REQUEST_SPAN, _ROUTING_SPAN = "gateway.request", "gateway.request_orchestration"
"""Names of the reference: from the request's headers to the end of its response, and the part until it is routed."""


class TracedRouter(Router):
    """Routes by another router, and writes the spans of each request that is sampled.

    Every request is forwarded with the trace context of its own span, so that the engine's spans stand below it and follow
    its sampling.

    Args:
        inner: routes.
        tracer: starts the spans of requests.
        writer: writes the others.
    """

    def __init__(self, inner: Router, tracer: Tracer, writer: SpanWriter) -> None:
        self._inner, self._tracer, self._writer = inner, tracer, writer
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[int, Span] = {}
        """Identity of the decision on a request -> its span, until the request has ended; the route keeps the decision."""

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        """See `Router`."""
        started_ns, clock_ns = time.time_ns(), _clock_ns()
        span = self._tracer.start_span(
            _REQUEST_SPAN,
            self._context(request.headers),
            kind=SpanKind.SERVER,
            start_time=clock_ns + int(request.arrived_at * 1e9) if request.arrived_at else started_ns,
        )
        result = self._inner.route(request)
        return result.map(partial(self._routed, request, span, started_ns=started_ns, clock_ns=clock_ns))

    def completed(self, then: Callable[[Completion], None]) -> Callable[[Completion], None]:
        """Return a callback for the ends of requests, which ends their spans and calls `then`."""

        def ended(completion: Completion) -> None:
            if completion.route is not None:
                span = self._open.pop(id(completion.route.decision), None)
                if span is not None:
                    _end(span, completion)
            then(completion)

        return ended

    def _context(self, headers: Mapping[str, str]) -> Context:
        # A context of its own: the variables of the task may be those of another request.
        if not traceparent(headers):
            return Context()
        return self._propagator.extract(headers, Context())

    def _routed(
        self,
        request: RoutingRequest,
        span: Span,
        result: RoutingResult,
        *,
        started_ns: int,
        clock_ns: int,
    ) -> RoutingResult:
        is_recorded = span.is_recording()
        if isinstance(result, Refusal):
            if is_recorded:
                span.set_attribute("gen_ai.request.id", request.request_id)
                span.set_status(Status(StatusCode.ERROR, result.code.value))
                span.end()
            return result
        if isinstance(result, LocalResponse):
            if is_recorded:
                span.end()
            return result
        if is_recorded:
            self._write(result, span, started_ns=started_ns, clock_ns=clock_ns)
        elif traceparent(request.headers):
            return result  # the gateway's own context says that nothing is sampled
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        return replace(result, request_headers={**result.request_headers, **carrier})

    def _write(self, route: Route, span: Span, *, started_ns: int, clock_ns: int) -> None:
        """Write the spans of routing, and keep the request's own until its end."""
        now_ns, decision = time.time_ns(), route.decision
        attributes: dict[str, AttributeValue] = {
            "target_model": (route.rewrite.target if route.rewrite is not None else "") or decision.model,
            "request_prio": decision.origin.priority if decision.origin is not None else 0,
        }
        context = span.get_span_context()
        routing = self._writer.write(
            _ROUTING_SPAN, context, (started_ns, now_ns), attributes, SpanKind.SERVER
        )
        decided_ns = max(started_ns, clock_ns + int(decision.at * 1e9))
        self._writer.decision(decision, routing, (decided_ns, now_ns))
        self._open[id(decision)] = span


def _clock_ns() -> int:
    """Return what turns monotonic times into those of the wall clock."""
    return time.time_ns() - time.monotonic_ns()


def _end(span: Span, completion: Completion) -> None:
    """End the span of a request with what was seen of its response."""
    response = completion.response
    span.set_attribute("gen_ai.request.id", completion.request_id)
    if completion.endpoint is not None:
        span.set_attribute("server.address", completion.endpoint)
    if response.status is not None:
        span.set_attribute("http.response.status_code", response.status)
        if response.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
    if isinstance(response.usage, Usage):
        for name, count in (
            ("gen_ai.usage.input_tokens", response.usage.prompt_tokens),
            ("gen_ai.usage.output_tokens", response.usage.output_tokens),
            ("gen_ai.usage.cached_tokens", response.usage.cached_tokens),
        ):
            if count is not None:
                span.set_attribute(name, count)
    if response.time_to_first_byte_s is not None:
        span.set_attribute("gen_ai.server.time_to_first_token", response.time_to_first_byte_s)
    if completion.outcome is Outcome.ABORTED:
        span.set_status(Status(StatusCode.ERROR, "aborted"))
    span.end()
