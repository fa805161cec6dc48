"""Headers of requests and responses, custom resources and labels that the reference picker reads or writes.

Source: llm-d-router, pkg/common/routing/common.go and pkg/epp/metadata; LeaderWorkerSet's DisaggregatedSet.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADERS: Mapping[str, str] = {
    "x-llm-d-inference-objective": "objective of the request, which gives its priority",
    "x-gateway-inference-objective": "older name",
    "x-llm-d-inference-fairness-id": "whom the request counts for; kept in decisions",
    "x-gateway-inference-fairness-id": "older name",
    "x-llm-d-model-name-rewrite": "model to use instead of the body's",
    "x-gateway-model-name-rewrite": "older name",
    "x-llm-d-slo-ttft-ms": "wanted time to the first token",
    "x-slo-ttft-ms": "older name",
    "x-llm-d-slo-tpot-ms": "wanted time per output token",
    "x-slo-tpot-ms": "older name",
    "x-llm-d-video-fps": "size of a video; not read, since engines tell what media cost",
    "x-llm-d-video-duration-seconds": "as `x-llm-d-video-fps`",
    "x-llm-d-video-resolution": "as `x-llm-d-video-fps`",
    "x-session-id": "session of `session-affinity-scorer` and others, as their parameters say",
    "x-session-token": "endpoint of the last response, read back from the client, as the parameters of a plugin say",
    "x-request-id": "id of the request; one is made if it is absent",
    "traceparent": "W3C trace context",
    "prefer": "`if-available`: 412 unless the picked endpoint holds a part of the prompt; `reserve-endpoint`: not read",
    "epp-profile": "profile to run, with `header-profile-handler`",
    "x-gateway-destination-endpoint": "endpoints, best first, for the gateway",
    "x-gateway-destination-endpoint-subset": "in the gateway's metadata: addresses that may be picked",
    "x-gateway-destination-endpoint-served": "in the gateway's metadata: who served",
    "x-gateway-destination-endpoint-scores": "scores of the candidates, for the gateway",
    "x-llm-d-request-dropped-reason": "why a request was refused",
    "x-prefiller-host-port": "server that prefills, of a request with a prefill stage",
    "x-prefiller-url": "older name, which only sidecars before llm-d-router read; never written",
    "x-encoder-hosts-ports": "servers that encode, of a request with an encode stage",
    "x-data-parallel-host-port": "data-parallel rank, with `data-parallel-profile-handler`",
    "x-kv-cache-source-host-port": "server from which blocks are pulled; `p2p-source-producer` writes it",
    "x-gateway-inference-request-cost": "cost of a request, in the metadata of its response",
    "x-llm-d-reserved-host-port": "answer to `reserve-endpoint`; never written",
    "x-went-into-resp-headers": "mark of the reference on every response; written with `compat: llm-d`",
}
"""Header -> what it is, and what kvatlas does with it."""

RESOURCES: Mapping[str, str] = {
    "InferencePool `inference.networking.k8s.io/v1`, `inference.networking.x-k8s.io/v1alpha2`": (
        "selector and ports are read; nothing is written"
    ),
    "InferenceObjective `llm-d.ai/v1alpha2`, `inference.networking.x-k8s.io/v1alpha2`": (
        "`priority`, of those whose `poolRef`, `poolRefs` or `poolSelector` names the pool"
    ),
    "InferenceModelRewrite, the same two": (
        "`rules`, of those whose `poolRef` names the pool; a target without weight has weight 1 beside weighted ones, "
        "which the reference never chooses"
    ),
    "label `llm-d.ai/role`": "read by `decode-filter`, `prefill-filter` and `encode-filter`",
    "label `llm-d.ai/engine-type`, older `inference.networking.k8s.io/engine-type`": "series of the endpoint",
    "label `llm-d.ai/context-length-range`": "read by `context-length-aware`",
    "annotation `llm-d.ai/active-ports`, older `inference.networking.k8s.io/active-ports`": "ports that serve now",
    "labels `disaggregatedset.x-k8s.io/revision`, `disaggregatedset.x-k8s.io/role`": (
        "read by `disaggregatedset-rollout-screener`, so that a request stays within one revision"
    ),
    "label `leaderworkerset.sigs.k8s.io/worker-index`": "as every label, by `label-selector-filter`",
}
"""Resource, label or annotation -> what kvatlas does with it."""
