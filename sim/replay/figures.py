"""Figures of a replay: hit rates, times, throughput and balance, with confidence intervals over several seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from .simulation import Replayed, Served

STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
               2.131, 2.120, 2.110, 2.101, 2.093)  # fmt: skip
"""Quantile 0.975 of Student's t-distribution for 1 to 19 degrees of freedom; 2 is a good approximation beyond."""


class Estimate(msgspec.Struct, frozen=True):
    """A figure over several seeds.

    Attributes:
        mean: over all seeds.
        margin: half the width of its 95 % confidence interval; None with a single seed.
    """

    mean: float
    margin: float | None = None


def estimate(values: Sequence[float]) -> Estimate:
    """Compute mean and confidence interval of at least one independent value."""
    if len(values) < 2:
        return Estimate(values[0])
    quantile = STUDENT_975[len(values) - 2] if len(values) - 2 < len(STUDENT_975) else 2.0
    return Estimate(fmean(values), quantile * stdev(values) / sqrt(len(values)))


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest of the sorted values that a fraction `part` of them does not exceed; 0 if there are no values."""
    return ordered[max(0, -int(-len(ordered) * part // 1) - 1)] if ordered else 0.0


def figures(replayed: Replayed, servers: Sequence[str]) -> dict[str, float]:
    """Compute all figures of one replay by name: rates 0 to 1, times in seconds, throughput in tokens per second."""
    served = replayed.served
    prompt_tokens = max(1, sum(each.n_prompt for each in served))
    output_tokens = sum(each.n_output for each in served)
    found = {tier: sum(count(each) for each in served) / prompt_tokens for tier, count in _FOUND.items()}
    lasted = max((each.ended_at for each in served), default=0.0) - min(
        (each.came_at for each in served), default=0.0
    )
    return {
        "hitRate": sum(found.values()),
        **found,
        **_times("ttft", [each.ttft_s for each in served]),
        **_times("tpot", [each.tpot_s for each in served if each.tpot_s is not None]),
        **_times("e2e", [each.total_s for each in served]),
        "prefilledElsewhere": fmean(each.prefill is not None for each in served) if served else 0.0,
        "outputTokensPerSecond": output_tokens / lasted if lasted else 0.0,
        "tokensPerSecond": (prompt_tokens + output_tokens) / lasted if lasted else 0.0,
        "busiestServer": _busiest(served, servers),
        "preemptions": float(sum(counters.preemptions for counters in replayed.counters)),
        "refused": float(replayed.refused),
        "requests": float(len(served)),
        **_attainment(served),
    }


_FOUND: Mapping[str, Callable[[Served], int]] = {
    "gpuHitRate": lambda each: each.gpu_tokens,
    "cpuHitRate": lambda each: each.cpu_tokens,
    "storageHitRate": lambda each: each.storage_tokens,
}


def _attainment(served: Sequence[Served]) -> dict[str, float]:
    """Return the share of the requests with objectives that met all of them, under `sloMet`; empty if there are none."""
    named = [each for each in served if each.slo is not None]
    return {"sloMet": fmean(each.has_met for each in named)} if named else {}


def _times(name: str, values: list[float]) -> dict[str, float]:
    values.sort()
    return {
        f"{name}Mean": fmean(values) if values else 0.0,
        f"{name}P50": percentile(values, 0.5),
        f"{name}P90": percentile(values, 0.9),
        f"{name}P99": percentile(values, 0.99),
    }


def _busiest(served: Sequence[Served], servers: Sequence[str]) -> float:
    """Return the busiest server's computed and generated tokens relative to the mean; 1 if all servers have the same."""
    work: Counter[str] = Counter(dict.fromkeys(servers, 0))
    for each in served:
        cached = each.gpu_tokens + each.cpu_tokens + each.storage_tokens
        work[each.prefill or each.server] += each.n_prompt - cached
        work[each.server] += each.n_output
    mean = fmean(work.values())
    return max(work.values()) / mean if mean else 1.0
