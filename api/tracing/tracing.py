"""Tracing of one process: the library's parts, as configuration and environment say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased

from ...configs.tracing import TracingConfig
from ...routing.router import Router
from ..errors import TracingError
from .counts import SpanCounts
from .export import BoundedProcessor
from .router import TracedRouter
from .spans import SCOPE, SpanWriter

END_S = 5.0
"""Longest wait at the end of the process for spans that are not sent."""


class Tracing:
    """Sends spans from its start until `stop`.

    Args:
        config: `tracing`.
        environment: variables of the process; the library reads those of OpenTelemetry.
        receiver: URL that gets the spans.
        counts: counts spans.

    Raises:
        TracingError: the variables ask for what this process cannot do.
    """

    def __init__(
        self, config: TracingConfig, environment: Mapping[str, str], receiver: str, counts: SpanCounts
    ) -> None:
        # Its lines come for each batch that fails; ours say when that begins and ends.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        sampler: Sampler | None = None  # as OTEL_TRACES_SAMPLER says
        if not environment.get("OTEL_TRACES_SAMPLER"):
            sampler = ParentBased(TraceIdRatioBased(config.sample_ratio))
        is_named = OTELResourceDetector().detect().attributes.get(SERVICE_NAME)
        resource = Resource.create({} if is_named else {SERVICE_NAME: "kvatlas"})
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        try:
            exporter = _exporter(config, environment, receiver)
            self._processor = BoundedProcessor(
                exporter, counts, receiver=receiver, limit=config.max_queued_spans
            )
        except TracingError:
            raise
        except Exception as error:  # the library reads its variables here, and has kinds of errors of its own
            names = sorted(
                name for name in environment if name.startswith(("OTEL_EXPORTER_OTLP_", "OTEL_BSP_"))
            )
            raise TracingError(f"one of {', '.join(names)} cannot be used: {error}") from error
        self._provider.add_span_processor(self._processor)

    def traced(self, router: Router) -> TracedRouter:
        """Return a router that routes by `router` and writes spans."""
        writer = SpanWriter(self._processor, self._provider.resource)
        return TracedRouter(router, self._provider.get_tracer(SCOPE), writer)

    async def stop(self) -> None:
        """Send what waits, for `END_S` at most, and stop. Call it after the last request."""
        await asyncio.to_thread(self._processor.end, within_s=END_S)


def _exporter(config: TracingConfig, environment: Mapping[str, str], receiver: str) -> SpanExporter:
    """Return what sends spans by the protocol that the environment names."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((name for name in names if environment.get(name)), "")
    protocol = environment[name] if name else "grpc"
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc  # noqa: PLC0415 - one of two

        return by_grpc.OTLPSpanExporter(endpoint=receiver)
    if protocol != "http/protobuf":
        raise TracingError(f"{name} is {protocol!r}, want grpc or http/protobuf")
    try:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http  # noqa: PLC0415 - as above

        from .http_session import BoundedSession  # noqa: PLC0415 - needs what may be missing
    except ImportError:
        raise TracingError(
            f"{name} is {protocol!r}, which needs kvatlas[otlp-http]: install it, or name a receiver for gRPC "
            "(port 4317 by custom) and set the variable to grpc"
        ) from None
    # A variable for all signals needs the path of spans too, which the library adds.
    own = f"{config.endpoint.rstrip('/')}/v1/traces" if config.endpoint else None
    return by_http.OTLPSpanExporter(endpoint=own, session=BoundedSession())
