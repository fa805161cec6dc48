"""Expected time to first token of each endpoint, with costs that are learned from observed times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from .features import Features, features
from .groups import FitReport, GroupedFits
from .params import LatencyCostParams

DEFAULT_LOAD_SPEEDS = (100_000.0, 20_000.0)
"""Tokens loaded per second, by position after the first tier; the last applies to every further tier. The first is 26 GB/s
for a model of 256 KiB per token, a common speed of host memory; the second is a fast shared file system."""


class TtftCosts:
    """Model of the time to first token: a cost per request and per token, learned for each group of endpoints.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
    """

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str]) -> None:
        self._learns, self._tiers = params.fit, tuple(tiers)
        prefill_ms = 1000.0 / params.prefill_tokens_per_second
        given, last = params.load_tokens_per_second, len(DEFAULT_LOAD_SPEEDS) - 1
        loads_ms = {
            _load(tier): 1000.0 / given.get(tier, DEFAULT_LOAD_SPEEDS[min(place, last)])
            for place, tier in enumerate(self._tiers[1:])
        }
        self._fits = GroupedFits(
            {"overhead": params.overhead_ms, "queue": prefill_ms, "prefill": prefill_ms} | loads_ms,
            label=params.group_label,
            max_factor=params.max_factor,
            half_life=params.half_life_observations,
        )

    def expected_ms(self, n_tokens: int, candidates: Candidates) -> FloatArray:
        """Return the expected milliseconds by endpoint, of a prompt of `n_tokens`."""
        return self._fits.expected_ms(candidates, self._features(n_tokens, candidates))

    def with_work_ms(self, n_tokens: int, candidates: Candidates) -> tuple[FloatArray, FloatArray]:
        """Return the same, and the milliseconds of them that an endpoint computes for the request."""
        terms = self._fits.terms_ms(candidates, self._features(n_tokens, candidates))
        total = terms[0] + terms[1]
        for term in terms[2:]:
            total += term
        return total, terms[2]

    def learned_ms(self, n_tokens: int, candidates: Candidates) -> FloatArray | None:
        """Return the same, NaN for groups of which too few times are known; None if that holds for all."""
        if not self._fits.has_learned:
            return None
        return self._fits.learned_ms(candidates, self._features(n_tokens, candidates))

    def observe(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from an observed time; the expected waits are in the decision."""
        if self._learns:
            candidate = decision.best
            quantities = self._features(decision.n_tokens, Candidates.of([candidate]))
            self._fits.observe(candidate, quantities, ttft_s * 1000.0)

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return [replace(each, credits=self._credits(each.costs_ms)) for each in self._fits.reports()]

    def _features(self, n_tokens: int, candidates: Candidates) -> Features:
        return features(n_tokens, candidates, n_tiers=len(self._tiers))

    def _credits(self, costs_ms: Mapping[str, float]) -> dict[str, float]:
        return {
            tier: min(1.0, max(0.0, 1.0 - costs_ms[_load(tier)] / costs_ms["prefill"]))
            for tier in self._tiers[1:]
        }


def _load(tier: str) -> str:
    return f"load_{tier}"
