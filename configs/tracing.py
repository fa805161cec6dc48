"""Section for tracing, `tracing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from .section import Section


class TracingConfig(Section, frozen=True):
    """OpenTelemetry spans of requests, sent by OTLP."""

    enabled: bool = True
    """Whether spans are sent if an endpoint is named."""
    endpoint: str = ""
    """Receiver, `http://HOST:PORT` or with TLS `https://HOST:PORT`; empty: as the variable OTEL_EXPORTER_OTLP_ENDPOINT says, without it no spans."""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Share of the requests that get spans, of those about which the gateway has not decided; the variable OTEL_TRACES_SAMPLER goes before it."""
    max_queued_spans: Annotated[int, Meta(ge=512, le=1000000)] = 16384
    """Spans that wait to be sent; further ones are dropped and counted."""

    def receiver(self, environment: Mapping[str, str]) -> str:
        """Return the URL that gets the spans; empty if none are sent.

        Source: the names of variables and their order are OpenTelemetry's.
        """
        is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        if not self.enabled or is_off or environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
            return ""
        names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        return self.endpoint or next((environment[name] for name in names if environment.get(name)), "")
