"""Errors of the times that kvatlas predicts, in the second half of a run: in the first one it learns the servers' speed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvatlas.scorers.latency.fit_sums import ERROR_HALF_LIFE

from .gateway import metric_sums

TTFT, TPOT = "kvatlas_latency_mape", "kvatlas_tpot_mape"


@dataclass(frozen=True, slots=True)
class Errors:
    """Means of `abs(predicted / observed - 1)`, predicted when the requests were sent."""

    ttft: float
    tpot: float


class Halfway:
    """Reads kvatlas' metrics once half of a run's requests have ended, so that its means over all can be split.

    Args:
        page: URL of the metrics.
        n_requests: of the run.
    """

    def __init__(self, page: str, n_requests: int) -> None:
        self._page, self._n_requests, self._n_ended = page, n_requests, 0
        self._n_read = 0
        self._read: asyncio.Task[Mapping[str, float]] | None = None

    def ended(self) -> None:
        """Count a request that has ended."""
        self._n_ended += 1
        if self._read is None and self._n_ended >= self._n_requests / 2:
            self._n_read = self._n_ended
            self._read = asyncio.create_task(metric_sums([self._page]))

    async def errors(self, after: Mapping[str, float]) -> Errors | None:
        """Return the errors of the second half by the metrics of the end, None if kvatlas predicts no times."""
        if self._read is None or TTFT not in after:
            return None
        before = await self._read
        ttft, tpot = (
            late_mean(before[name], after[name], self._n_read, self._n_ended) for name in (TTFT, TPOT)
        )
        return Errors(ttft, tpot)


def late_mean(before: float, after: float, n_before: int, n_after: int) -> float:
    """Return the mean of the numbers that came between two readings of a mean whose old numbers fade.

    Args:
        before: mean of the first `n_before` numbers.
        after: mean of all `n_after`.
        n_before: numbers at the first reading.
        n_after: numbers at the second one.
    """
    decay: float = 0.5 ** (1.0 / ERROR_HALF_LIFE)
    old = (math.pow(decay, n_before) - 1.0) * math.pow(decay, n_after - n_before)
    all_ = math.pow(decay, n_after) - 1.0
    return (after * all_ - before * old) / (all_ - old)
