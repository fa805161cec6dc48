"""Plugins of the reference endpoint picker that have no effect here.

Each without effect is accepted, and the reason is logged once at the start. A type that is neither here nor registered
is refused: leaving it out would change decisions.
"""

from __future__ import annotations

from collections.abc import Mapping

_SCRAPING = "kvatlas scrapes by itself; see metricsScrape and endpoints"
_TOKENS = "token ids come from model.tokenizer, or from model.remoteTokenizer"
_QUEUES = "kvatlas forwards requests at once and has no queues"
_SYNCER = "dataLayer.crossReplica does not name it; kvatlas' own files have the section replicas"

_UNNAMED_FILE = "dataLayer.discovery does not name it; kvatlas' own files have endpoints.file"

NO_EFFECT: Mapping[str, str] = {
    "metrics-data-source": _SCRAPING,
    "core-metrics-extractor": _SCRAPING,
    "model-server-protocol-metrics": _SCRAPING,
    "models-data-source": "the served models are model.names",
    "models-data-extractor": "the served models are model.names",
    "endpoint-notification-source": "kvatlas forgets what a removed endpoint held by itself",
    "k8s-notification-source": "kvatlas forgets what a removed endpoint held by itself",
    "token-producer": _TOKENS,
    "tokenizer": _TOKENS,
    "concurrency-detector": "kvatlas measures saturation by queues and KV caches; see admission",
    "global-strict-fairness-policy": _QUEUES,
    "round-robin-fairness-policy": _QUEUES,
    "fcfs-ordering-policy": _QUEUES,
    "edf-ordering-policy": _QUEUES,
    "slo-deadline-ordering-policy": _QUEUES,
    "program-aware-fairness": _QUEUES,
    "static-usage-limit-policy": _QUEUES,
    "priority-holdback-policy": _QUEUES,
    "soft-reflective-ceiling-policy": _QUEUES,
    "sheddable-eviction-filter": _QUEUES,
    "priority-then-time-eviction-order-policy": _QUEUES,
    "local-syncer": "it shares state within one process, as kvatlas does without it",
    "redis-syncer": _SYNCER,
    "redis-state-store": _SYNCER,
    "outlen-bucket": "kvatlas takes no classes of output lengths",
    "destination-endpoint-served-verifier": "it is for tests of the reference",
    "file-discovery": _UNNAMED_FILE,
    "multicluster-file-discovery": _UNNAMED_FILE,
}
"""Plugin type -> why it has no effect."""
