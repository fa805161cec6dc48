"""Candidates with predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate
from kvatlas.scorers.core.predictions import Predictions

Times = Sequence[tuple[float, float] | None]
"""Milliseconds to the first token and per output token of each endpoint, None without a prediction."""


def predicted(
    candidates: Sequence[Candidate], times: Times, *, ttft_ms: float = 0.0, tpot_ms: float = 0.0
) -> Candidates:
    """Return the table of these candidates with predictions, and headrooms to these limits."""
    known = np.array([(np.nan, np.nan) if each is None else each for each in times], np.float64).T
    figures = np.vstack([known, np.array([[ttft_ms], [tpot_ms]]) - known])
    return Candidates.of(candidates).predicted(Predictions(figures))
