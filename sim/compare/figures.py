"""Figures of runs: of one, and of repeats."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import msgspec

from .load import Played

Seconds = Annotated[float, "simulated seconds"]


class RunFigures(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One run; times are simulated seconds from a request to its first token.

    Attributes:
        requests: those that succeeded.
        failed: those that failed.
        without_picker: those that went round robin because the picker failed.
        ttft_mean: 0 if none succeeded, as all times.
        cached: share of the prompt tokens that the servers had in any tier, 0 to 1.
        busiest: share of the requests on the server with the most.
        lag_p99: how late the simulation itself was, real seconds.
    """

    requests: int
    failed: int
    without_picker: int
    ttft_mean: Seconds
    ttft_p50: Seconds
    ttft_p90: Seconds
    ttft_p99: Seconds
    cached: float
    busiest: float
    lag_p99: float


class Row(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One policy under one load, over all repeats."""

    policy: str
    rate: float
    runs: tuple[RunFigures, ...]

    def mean(self, name: str) -> float:
        """Return the mean of a figure over the runs."""
        return fmean(getattr(each, name) for each in self.runs)

    def range(self, name: str) -> tuple[float, float]:
        """Return the least and the largest value of a figure."""
        values = [getattr(each, name) for each in self.runs]
        return min(values), max(values)


def figures_of(played: Played, *, time_scale: float, without_picker: int) -> RunFigures:
    """Return the figures of one run."""
    times = sorted(turn.ttft_s / time_scale for turn in played.turns)
    servers = [turn.server for turn in played.turns]
    n_prompt = sum(turn.prompt_tokens for turn in played.turns)
    return RunFigures(
        requests=len(times),
        failed=len(played.errors),
        without_picker=without_picker,
        ttft_mean=fmean(times) if times else 0.0,
        ttft_p50=quantile(times, 0.5),
        ttft_p90=quantile(times, 0.9),
        ttft_p99=quantile(times, 0.99),
        cached=sum(turn.cached_tokens for turn in played.turns) / max(1, n_prompt),
        busiest=max(map(servers.count, set(servers)), default=0) / max(1, len(servers)),
        lag_p99=quantile(sorted(played.lags_s), 0.99),
    )


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return the least value that at least this share of all does not exceed; 0 if there is none."""
    if not ascending:
        return 0.0
    return ascending[max(0, -int(-share * len(ascending) // 1) - 1)]
