"""The names of all benchmarks."""

from __future__ import annotations

from importlib import import_module

from .common.benchmark import Benchmark

MODULES = {
    "index": "index.index",
    "encoding": "tokenization.encoding",
    "request-path": "tokenization.request_path",
    "scrape": "fleet.scrape",
    "snapshot": "fleet.snapshot",
    "warm-start": "fleet.warm_start",
    "cluster": "fleet.cluster",
    "replica-cost": "fleet.replica_cost",
    "decision": "routing.decision",
    "placements": "routing.placements",
    "observers": "routing.observers",
    "replicas": "routing.replicas",
    "request-server": "api.request_server",
    "extproc": "api.extproc",
    "chunks": "api.chunks",
    "query": "index.query",
    "drafters": "index.drafters",
    "resident": "index.resident",
    "dashboard": "api.dashboard",
    "soak": "api.soak",
    "chunk-soak": "api.chunk_soak",
}
"""Name -> module. One is imported only when it is wanted, so that a measured process holds nothing of the others."""


def load(name: str) -> Benchmark:
    """Return the benchmark of that name, one of `MODULES`."""
    benchmark: Benchmark = import_module(f".{MODULES[name]}", __package__).BENCHMARK
    return benchmark
