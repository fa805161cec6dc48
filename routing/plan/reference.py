"""Plugins of the reference endpoint picker that have no effect here.

Each is accepted, and the reason is logged once at the start. A type that is neither here nor registered is refused:
leaving it out would change decisions.
"""

from __future__ import annotations

from collections.abc import Mapping

_SCRAPING = "kvatlas scrapes by itself; see metricsScrape and endpoints"
_PARSING = "kvatlas reads every API it knows"
_TOKENS = "kvatlas tokenizes by itself; see model.tokenizer"
_QUEUES = "kvatlas forwards requests at once and has no queues"

NO_EFFECT: Mapping[str, str] = {
    "single-profile-handler": "kvatlas runs one profile",
    "metrics-data-source": _SCRAPING,
    "core-metrics-extractor": _SCRAPING,
    "model-server-protocol-metrics": _SCRAPING,
    "models-data-source": "the served models are model.names",
    "models-data-extractor": "the served models are model.names",
    "endpoint-notification-source": "kvatlas forgets what a removed endpoint held by itself",
    "k8s-notification-source": "kvatlas forgets what a removed endpoint held by itself",
    "token-producer": _TOKENS,
    "tokenizer": _TOKENS,
    "inflight-load-producer": "kvatlas counts requests and uncached prompt tokens in flight by itself",
    "openai-parser": _PARSING,
    "anthropic-parser": _PARSING,
    "vllmhttp-parser": _PARSING,
    "sglanghttp-parser": _PARSING,
    "vllmgrpc-parser": _PARSING,
    "vertexai-parser": _PARSING,
    "passthrough-parser": _PARSING,
    "concurrency-detector": "kvatlas measures saturation by queues and KV caches; see admission",
    "global-strict-fairness-policy": _QUEUES,
    "round-robin-fairness-policy": _QUEUES,
    "fcfs-ordering-policy": _QUEUES,
    "edf-ordering-policy": _QUEUES,
    "slo-deadline-ordering-policy": _QUEUES,
    "static-usage-limit-policy": _QUEUES,
    "file-discovery": "dataLayer.discovery does not name it; kvatlas' own files have endpoints.file",
    "request-attribute-reporter": "kvatlas reports by its own metrics",
}
"""Plugin type -> why it has no effect."""
