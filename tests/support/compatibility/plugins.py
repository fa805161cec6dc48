"""Plugin types of the reference picker, by kind.

Source: llm-d-router, cmd/epp/runner/runner.go at 024aa2d9, and the types' READMEs. An asterisk marks a type for which the
reference needs `--allow-experimental-plugins`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvatlas.configs import dcgm_source, multicluster
from kvatlas.tokenization.requests.parsers import PARSERS

TYPES: Mapping[str, str] = {
    "filters": (
        "label-selector-filter by-label by-label-selector decode-filter prefill-filter encode-filter utilization-filter*"
        " prefix-cache-affinity-filter slo-headroom-tier-filter session-affinity-filter* endpoint-attribute-filter*"
        " topology-affinity-filter* multicluster-session-affinity-filter* header-based-testing-filter"
        " disaggregatedset-rollout-screener*"
    ),
    "scorers": (
        "queue-scorer running-requests-size-scorer kv-cache-utilization-scorer load-aware-scorer active-request-scorer"
        " token-load-scorer prefix-cache-scorer precise-prefix-cache-scorer no-hit-lru-scorer lora-affinity-scorer"
        " context-length-aware latency-scorer lmetric-scorer* mm-embeddings-cache-scorer session-affinity-scorer*"
        " header-label-affinity-scorer* endpoint-attribute-scorer* topology-affinity-scorer*"
        " multicluster-queue-scorer* multicluster-kv-cache-utilization-scorer* multicluster-prefix-cache-scorer*"
    ),
    "pickers": "max-score-picker random-picker weighted-random-picker",
    "profile handlers and deciders": (
        "single-profile-handler disagg-profile-handler disagg-headers-handler prefill-header-handler pd-profile-handler"
        " data-parallel-profile-handler header-profile-handler* always-disagg-pd-decider prefix-based-pd-decider"
        " always-disagg-multimodal-decider"
    ),
    "data producers": (
        "approx-prefix-cache-producer precise-prefix-cache-producer burst-prefix-cache-producer*"
        " multicluster-approx-prefix-cache-producer* mm-embeddings-cache-producer p2p-source-producer*"
        " inflight-load-producer predicted-latency-producer session-id-producer token-producer tokenizer"
    ),
    "admission, requests, responses": (
        "latency-slo-admitter probabilistic-admitter request-attribute-reporter agent-identity* outlen-bucket*"
        " models-responder* destination-endpoint-served-verifier"
    ),
    "parsers": (
        "openai-parser anthropic-parser vllmhttp-parser sglanghttp-parser vllmgrpc-parser vertexai-parser"
        " passthrough-parser"
    ),
    "flow control": (
        "utilization-detector concurrency-detector global-strict-fairness-policy round-robin-fairness-policy"
        " program-aware-fairness fcfs-ordering-policy edf-ordering-policy slo-deadline-ordering-policy"
        " static-usage-limit-policy priority-holdback-policy* soft-reflective-ceiling-policy*"
        " sheddable-eviction-filter* priority-then-time-eviction-order-policy*"
    ),
    "data sources and discovery": (
        "metrics-data-source core-metrics-extractor model-server-protocol-metrics models-data-source models-data-extractor"
        " endpoint-notification-source k8s-notification-source dcgm-data-source* dcgm-extractor* topology-extractor*"
        " multicluster-metrics-data-source* multicluster-metrics-extractor* file-discovery"
        " multicluster-file-discovery*"
    ),
    "replicas": "local-syncer redis-syncer redis-state-store",
}
"""Kind -> types, separated by blanks."""

USED: Mapping[str, str] = {
    **dict.fromkeys(
        ("file-discovery", multicluster.DISCOVERY),
        "its file lists the endpoints if `dataLayer.discovery` names it, and is always watched",
    ),
    "metrics-data-source": "its parameters are `interval`, `scheme`, `port`, `page` and `tls` of `metricsScrape`",
    multicluster.METRICS_SOURCE: "as `metrics-data-source`, with https and verified certificates by default",
    multicluster.EXTRACTOR: f"its series are those of the engine `{multicluster.ENGINE}` of `metricsScrape.engines`",
    dcgm_source.SOURCE: f"its parameters are `metricsScrape.dcgm`, if there is a `{dcgm_source.EXTRACTOR}`",
    dcgm_source.EXTRACTOR: f"switches `metricsScrape.dcgm` on, if there is a `{dcgm_source.SOURCE}`",
    "core-metrics-extractor": "its engines are `metricsScrape.engine` and `engines`",
    "model-server-protocol-metrics": "as `core-metrics-extractor`, of which it is the older name",
    "token-producer": "its `vllm.url` is `model.remoteTokenizer.url`, and its `estimate` is `tokenization.estimate`",
    "tokenizer": "as `token-producer`, of which it is the older name",
    **dict.fromkeys(
        ("redis-syncer", "redis-state-store"),
        "its server is `replicas.valkey` if `dataLayer.crossReplica` names it; nothing is stored on it",
    ),
    **dict.fromkeys(
        PARSERS, "reads its paths if `requestHandler.parsers` names it, which needs no entry in `plugins`"
    ),
    "utilization-detector": "its thresholds are those of `admission`, if it is the detector in force",
}
"""Type that becomes a part of the configuration -> what of it is used."""
