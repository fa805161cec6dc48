"""Parts of the examples that are of prompts and decisions."""

from __future__ import annotations

MATCH = {
    "default": {"vllm-0": {"longest_matched": 1200, "GPU": 800, "CPU": 1200, "DISK": 0, "DP": {"0": 1200}}}
}
PREFIX = {
    "rank": 0,
    "usableTokens": 1200,
    "predictedTokens": 0,
    "tierTokens": {"gpu": 800, "cpu": 1200},
    "runs": [{"tier": "gpu", "blocks": 50}, {"tier": "cpu", "blocks": 25}],
}
TERM = {
    "name": "queue-scorer",
    "type": "queue-scorer",
    "raw": 0,
    "score": 1.0,
    "weight": 2,
    "product": 2.0,
    "ageSeconds": 0.04,
}
SCORED = {
    "name": "vllm-0",
    "address": "10.0.0.1:8000",
    "total": 4.2,
    "filteredBy": None,
    "filterReason": None,
    "filtersPassed": [],
    "trust": "live",
    "credit": 1.0,
    "load": {"waiting": 0, "running": 3, "kvUtilization": 0.4, "ageSeconds": 0.04},
    "inFlight": {"requests": 3, "tokens": 0},
    "prefix": PREFIX,
    "predicted": None,
    "scores": [TERM],
}
DECISION = {
    "model": "qwen3",
    "tokens": 1234,
    "blocks": 77,
    "picked": ["vllm-0"],
    "tie": False,
    "tied": [],
    "picker": "max-score-picker",
    "configGeneration": 3,
    "noPrefixReason": None,
    "cutReason": None,
    "counterfactual": {"scorer": "queue-scorer", "weight": 2, "newWeight": 3.5, "picks": ["vllm-1"]},
    "faults": [],
    "endpoints": [SCORED],
}
ORIGIN = {
    "requestId": "5f0c7a1e",
    "time": "2026-11-21T18:24:29.120Z",
    "traceparent": "",
    "objective": "",
    "priority": 0,
    "fairnessId": "",
    "slo": None,
}
AUDITED = {
    "verdict": "evicted",
    "tier": "cpu",
    "expectedTokens": {"gpu": 800, "cpu": 400},
    "reusedTokens": {"gpu": 800, "cpu": 144},
    "errorTokens": 256,
}
SUMMARY = {
    "requestId": "5f0c7a1e",
    "time": "2026-11-21T18:24:29.120Z",
    "model": "qwen3",
    "tokens": 1234,
    "usableTokens": 1200,
    "picked": ["vllm-0"],
    "total": 4.2,
    "tie": False,
    "configGeneration": 3,
}
