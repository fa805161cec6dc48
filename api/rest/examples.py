"""An example of every call, as OpenAPI shows it; a test sends and reads them by the models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .example_decisions import AUDITED, DECISION, MATCH, ORIGIN, SUMMARY


@dataclass(frozen=True, slots=True)
class Example:
    """One call.

    Attributes:
        answer: JSON of a good answer, or its text.
        body: JSON of the request, None without one.
        parameters: of path and query, by name.
    """

    answer: Any
    body: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])


_ENDPOINT = {
    "name": "vllm-0",
    "address": "10.0.0.1:8000",
    "tenant": "default",
    "instance": "vllm-0",
    "labels": {"zone": "a"},
    "load": {
        "waiting": 0,
        "running": 3,
        "kvUtilization": 0.4,
        "inFlightRequests": 3,
        "inFlightTokens": 0,
        "ageSeconds": 0.04,
    },
    "scrape": {
        "url": "http://10.0.0.1:8000/metrics",
        "engine": "vllm",
        "intervalSeconds": 0.05,
        "failing": False,
        "lastError": None,
    },
    "tiers": [
        {
            "name": "gpu",
            "residencies": 20480,
            "capacity": 31250,
            "configuredCapacity": "auto",
            "capacitySummary": "configured auto, told 31250, observed 30980 +- 2 %",
            "observedCapacity": {"blocks": 30980, "error": 0.02, "samples": 40, "basis": "evictions"},
            "chunkBlocks": None,
            "source": "events",
            "dark": False,
            "advice": None,
        }
    ],
    "publishers": [
        {
            "rank": 0,
            "events": "tcp://10.0.0.1:5557",
            "replay": "tcp://10.0.0.1:5558",
            "trust": "live",
            "epoch": 1,
            "lastSeq": 51234,
            "lagSeconds": 0.02,
            "blockSize": 16,
            "counters": {"applied": 51235, "gaps": 0},
        }
    ],
}
_NAME = {"name": "vllm-0"}
_WORKER = {
    "instance_id": "node-1",
    "tenant_id": "acme",
    "source": "zmq",
    "status": "active",
    "registered": True,
    "type": "vLLM",
    "model_name": "llama",
    "lora_name": None,
    "block_size": 16,
    "endpoints": {"0": "tcp://10.0.0.7:5557"},
    "listeners": {
        "0": {
            "endpoint": "tcp://10.0.0.7:5557",
            "replay_endpoint": "tcp://10.0.0.7:5558",
            "status": "active",
            "trust": "live",
        }
    },
}
_REGISTRATION = {
    "instance_id": "node-1",
    "tenant_id": "acme",
    "type": "vLLM",
    "model": "llama",
    "block_size": 16,
    "endpoint": "tcp://10.0.0.7:5557",
    "replay_endpoint": "tcp://10.0.0.7:5558",
}
_WEIGHTS = {"queue": 3, "kvCacheUtilization": 2, "gpuPrefixCache": 1, "cpuPrefixCache": 0.5}
_CONFIG = {"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig", "weights": _WEIGHTS}
_CHECK = {
    "name": "load-fresh",
    "asks": "Is load read often enough?",
    "state": "warn",
    "evidence": ["busy endpoints are read every 1 s; 0.25 s is the most that queues stay known"],
    "more": 0,
    "effect": "bursts go to one endpoint before its queue is seen to grow",
    "remedies": ["metricsScrape.interval: 50ms"],
}
_INDEX_TIER = {"name": "gpu", "media": ["GPU"], "scope": "server", "residencies": 40960, "endpoints": 2}
_INDEX = {
    "core": "native",
    "hashSeed": 0,
    "blockSizes": [16],
    "keys": 30720,
    "residencies": 40960,
    "unsweptKeys": 0,
    "bytes": 1310720,
    "tiers": [_INDEX_TIER],
}
_POINTS = [
    {"gib": 50, "hitRate": 0.61, "gainPer10Gib": 0.022},
    {"gib": 100, "hitRate": 0.72, "gainPer10Gib": None},
]

_RIVAL = {"name": "vllm-1", "total": 3.1, "terms": [{"name": "queue-scorer", "product": 1.0}]}
_LIVE_DECISION = SUMMARY | {
    "terms": [{"name": "queue-scorer", "product": 2.0}],
    "rival": _RIVAL,
    "dropped": 0,
    "noPrefixReason": None,
    "verdict": "good",
}
_FRAME = {
    "time": "2026-11-21T18:24:29.120Z",
    "ready": True,
    "generation": 3,
    "keys": 30720,
    "residencies": 40960,
    "bytes": 1310720,
    "endpointCount": 1,
    "endpoints": [_ENDPOINT],
    "decisionCount": 5120,
    "decisions": [_LIVE_DECISION],
}

EXAMPLES: Mapping[tuple[str, str], Example] = {
    ("post", "/register"): Example(
        {"status": "registered successfully", "instance_id": "node-1"}, body=_REGISTRATION
    ),
    ("post", "/unregister"): Example(
        {"status": "unregistered successfully", "removed_instances": ["node-1|acme|0"]},
        body={"instance_id": "node-1", "tenant_id": "acme"},
    ),
    ("get", "/workers"): Example([_WORKER]),
    ("post", "/events"): Example({"applied": 1, "duplicates": 0, "stale": 0}),
    ("post", "/query"): Example(MATCH, body={"model": "qwen3", "token_ids": [9707, 11, 1879, 0]}),
    ("post", "/query_by_hash"): Example(
        MATCH, body={"block_size": 16, "seq_hashes": [8773583392624668237, 14571380008329203442]}
    ),
    ("post", "/v1/score"): Example(
        DECISION, body={"model": "qwen3", "messages": [{"role": "user", "content": "Where is my cache?"}]}
    ),
    ("get", "/v1/decisions"): Example(
        {"decisions": [SUMMARY], "nextCursor": None, "missingReplicas": []},
        parameters={"limit": 20, "endpoint": "vllm-0"},
    ),
    ("get", "/v1/decisions/{request_id}"): Example(
        DECISION | ORIGIN | {"audited": AUDITED}, parameters={"request_id": "5f0c7a1e"}
    ),
    ("get", "/v1/audit"): Example(
        {
            "endpoints": [
                {
                    "name": "vllm-0",
                    "requests": 120,
                    "verdicts": {"good": 118, "evicted": 2},
                    "expectedTokens": {"gpu": 96000, "cpu": 24000},
                    "reusedTokens": {"gpu": 96000, "cpu": 23488},
                    "overTokens": 512,
                    "underTokens": 0,
                    "credit": 1.0,
                }
            ],
            "missingReplicas": [],
        }
    ),
    ("get", "/v1/endpoints"): Example(
        {"endpoints": [_ENDPOINT], "nextCursor": None}, parameters={"limit": 100}
    ),
    ("get", "/v1/endpoints/{name}"): Example(_ENDPOINT, parameters=_NAME),
    ("post", "/v1/endpoints/{name}/reset"): Example(
        {"endpoint": "vllm-0", "forgotten": 20480, "replaying": [0], "missingReplicas": []}, parameters=_NAME
    ),
    ("get", "/v1/live"): Example(_FRAME),
    ("get", "/v1/index"): Example(_INDEX),
    ("get", "/v1/config"): Example(
        {"generation": 3, "files": ["kvatlas.yaml"], "refused": {}, "config": _CONFIG}
    ),
    ("put", "/v1/weights"): Example(
        {
            "generation": 4,
            "changes": ["weights.queue: 2 -> 3", "weights.cpuPrefixCache: 1 -> 0.5"],
            "weights": _WEIGHTS,
            "replicas": [],
        },
        body={"queue": 3, "cpuPrefixCache": 0.5},
    ),
    ("get", "/v1/capacities"): Example(
        {"generation": 3, "capacities": {"gpu": "auto", "cpu": 41000, "storage": "auto"}}
    ),
    ("put", "/v1/capacities"): Example(
        {"generation": 4, "changes": ["tiers[cpu].lruCapacityPerServer: 41000 -> 50000"], "replicas": []},
        body={"cpu": 50000},
    ),
    ("get", "/v1/replicas"): Example(
        {
            "transport": "mesh",
            "name": "kvatlas-0",
            "id": "kvatlas-0/18ead310eab3b558",
            "problem": None,
            "generation": 3,
            "configuration": "9f2c4d1e",
            "heardPicks": 4200,
            "concurrentPicks": 12,
            "replicas": [
                {
                    "name": "kvatlas-1",
                    "id": "kvatlas-1/18ead311a07532ee",
                    "version": "0.1.0",
                    "state": "live",
                    "ageSeconds": 0.12,
                    "missingMessages": 0,
                    "receivedMessages": 5120,
                    "receivedBytes": 2097152,
                    "generation": 3,
                    "configuration": "9f2c4d1e",
                    "problem": None,
                }
            ],
        }
    ),
    ("get", "/v1/policy"): Example(
        {
            "generation": 3,
            "policy": "latency",
            "costs": [
                {
                    "scorer": "fleet-cost-scorer",
                    "group": "",
                    "state": "few",
                    "observations": 12,
                    "says": "Costs are not learned yet: 12 of 30 times to first token are known. Until then the configured "
                    "ones (15,928 prompt tokens/s) are in force.",
                }
            ],
        }
    ),
    ("put", "/v1/policy"): Example(
        {"generation": 4, "changes": ["policy: 'weights' -> 'latency'"], "replicas": []},
        body={"policy": "latency"},
    ),
    ("put", "/v1/shadow"): Example(
        {"generation": 5, "changes": ["shadow.policy: absent -> 'latency'"], "replicas": []},
        body={"policy": "latency"},
    ),
    ("get", "/v1/capacity-curve"): Example(
        {
            "enabled": True,
            "points": _POINTS,
            "endpoints": [
                {
                    "name": "vllm-0",
                    "blockSize": 16,
                    "kvBytesPerToken": 262144,
                    "kvBytesSource": "/models/qwen3-32b/config.json",
                    "gpuGib": 36.2,
                    "tokens": 41230000,
                    "samplingRate": 0.125,
                    "followedKeys": 8192,
                    "hitRateUnbounded": 0.84,
                    "points": _POINTS,
                }
            ],
        },
        parameters={"gib": [50, 100]},
    ),
    ("get", "/v1/recorder"): Example(
        {
            "folder": "/var/lib/kvatlas/traces",
            "file": "requests-20261121T182429Z-000002.jsonl",
            "bytes": 182_450_112,
            "requests": {"recorded": 41230, "no_prefix": 12},
            "unknownOutputs": 380,
            "waiting": 7,
            "failure": None,
        }
    ),
    ("get", "/v1/weights"): Example(
        {"generation": 3, "weights": [{"name": "queue", "scorer": "queue-scorer", "weight": 2}]}
    ),
    ("post", "/v1/weights/preview"): Example(
        {
            "decisions": 1000,
            "changed": 12,
            "skipped": 0,
            "tokens": 1234000,
            "usableTokensBefore": 1100000,
            "usableTokensAfter": 1090000.0,
            "endpoints": [{"name": "vllm-0", "before": 510, "after": 498.0}],
            "moved": [{"decision": SUMMARY, "leaders": ["vllm-1"]}],
        },
        body={"queue": 3},
    ),
    ("get", "/v1/shadow"): Example(
        {
            "policy": "latency",
            "file": None,
            "refusal": None,
            "seconds": 3600.0,
            "requests": {"agreed": 9200, "disagreed": 800, "refused": 0, "not_chosen": 0, "over_budget": 0},
            "disagreement": {"share": 0.08, "low": 0.075, "high": 0.085},
            "promptTokens": 12_000_000,
            "liveTokens": {"gpu": 6_000_000, "cpu": 1_500_000},
            "shadowTokens": {"gpu": 6_300_000, "cpu": 1_500_000},
            "cachedGainTokens": {"mean": 30.0, "margin": 4.1, "requests": 10_000},
            "ttftGainSeconds": {"mean": 0.002, "margin": 0.0004, "requests": 9000},
            "liveTtftSeconds": {"mean": 0.031, "margin": 0.0007, "requests": 9000},
            "shadowTtftSeconds": {"mean": 0.029, "margin": 0.0006, "requests": 9000},
            "terms": {"queue-scorer": {"mean": -0.21, "margin": 0.02, "requests": 800}},
            "faults": 0,
            "cpuSeconds": 1.9,
        }
    ),
    ("get", "/v1/doctor"): Example({"state": "warn", "checks": [_CHECK]}),
    ("get", "/healthz"): Example({"status": "ok"}),
    ("get", "/readyz"): Example({"status": "ready"}),
    ("get", "/metrics"): Example("kvatlas_ready 1.0\n"),
}
