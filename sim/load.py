"""Counters and load of a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counters for /metrics, in tokens unless named otherwise.

    Lookups of resumed requests are not counted, as in vLLM.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    gpu_queries: int = 0
    gpu_hits: int = 0
    cpu_queries: int = 0
    cpu_hits: int = 0
    storage_hits: int = 0
    pulled_tokens: int = 0
    stored_blocks: int = 0
    loaded_blocks: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load at the end of a step; changes during a step become visible at its end, as in vLLM.

    Attributes:
        running: requests in the running set.
        waiting: queued requests, including those that wait for a load.
        deferred: queued requests that wait for a load, their own or another's.
        kv_usage: fraction of the GPU blocks in use, 0 to 1.
        running_loras: adapters of the running requests.
        waiting_loras: adapters of the waiting requests.
    """

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage: float = 0.0
    running_loras: frozenset[str] = frozenset()
    waiting_loras: frozenset[str] = frozenset()
