"""Expected time per output token of each endpoint, with costs that are learned from streamed responses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.columns import FloatArray
from .groups import FitReport, GroupedFits
from .lines import BATCH, BUSY_AT, BUSY_MS, BUSY_S

TOKEN_MS, REQUEST_MS = 15.0, 0.2
"""Milliseconds per output token of a request alone, and more of them per request beside it, before anything is learned:
about those of a model of 32 billion weights on two H100. Prompts that take half of an endpoint's time double the first."""

HALF_LIFE = 200.0
"""Later observations after which an observation has half its weight. A response is observed at its end, so that the mix
of prompts and responses has changed by then; fewer would be noise."""

MOST_BUSY = 0.8
"""Largest share of its time that an endpoint is taken to spend on prompts; more does not last."""


TOKEN, REQUESTS, PROMPTS = range(3)
"""Lines of the features."""


class TpotCosts:
    """Model of the time per output token: a cost per token, per request in the batch, and for the prompts that are computed meanwhile.

    A step with prompt tokens delays all responses: an endpoint that spends the share b of its time on prompts
    spends b / (1 - b) times as long on them as on output tokens.

    Args:
        group_label: label whose value groups endpoints with equal costs; empty: all endpoints are one group.

    Attributes:
        fits: the costs.
    """

    def __init__(self, group_label: str = "") -> None:
        self.fits = GroupedFits(
            {"token": TOKEN_MS, "request": REQUEST_MS, "prompts": TOKEN_MS},
            label=group_label,
            half_life=HALF_LIFE,
        )

    def features(self, ttft: FloatArray, accounts: FloatArray, *, now: float) -> FloatArray:
        """Return the features by endpoint, shape (3, n).

        Args:
            ttft: those of the time to first token.
            accounts: see `Accounts.columns`.
            now: monotonic seconds.
        """
        busy = accounts[BUSY_MS] * np.exp((accounts[BUSY_AT] - now) / BUSY_S) / (BUSY_S * 1000.0)
        busy = np.minimum(busy, MOST_BUSY)
        found = np.empty((3, ttft.shape[1]))
        found[TOKEN], found[REQUESTS] = 1.0, ttft[BATCH]
        np.divide(busy, 1.0 - busy, out=found[PROMPTS])
        return found

    def features_of(
        self, ttft: Sequence[float], accounts: Sequence[float], *, now: float
    ) -> tuple[float, float, float]:
        """Return the features of one endpoint, see `features`."""
        busy = accounts[BUSY_MS] * math.exp((accounts[BUSY_AT] - now) / BUSY_S) / (BUSY_S * 1000.0)
        busy = min(busy, MOST_BUSY)
        return 1.0, ttft[BATCH], busy / (1.0 - busy)

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return self.fits.reports()
