"""Predicted times of one request on all of its candidates, as columns."""

from __future__ import annotations

import msgspec
import numpy as np

from .columns import FloatArray, Mask, RowArray, SmallFloats, shown

N_FIGURES = 4
"""Number of rows of `Predictions.figures`."""


class Predictions(msgspec.Struct, frozen=True, gc=False):
    """What a predictor expects of each candidate. Headroom is the objective less the prediction; 0 stands for an absent objective.

    Attributes:
        figures: shape (4, n), in milliseconds: time to the first token, time per output token, and the headroom of each. The
            first and the headrooms are NaN if nothing is predicted for the endpoint. The time per output token is NaN while
            it is unknown or has no part in the decision; its headroom is then 0.
    """

    figures: FloatArray | SmallFloats

    @property
    def ttft_ms(self) -> FloatArray:
        """Milliseconds to the first token; NaN without a prediction."""
        return self._row(0)

    @property
    def tpot_ms(self) -> FloatArray:
        """Milliseconds per output token after the first; NaN if unknown."""
        return self._row(1)

    @property
    def ttft_headroom_ms(self) -> FloatArray:
        """Milliseconds by which the first token is expected before its limit; NaN without a prediction."""
        return self._row(2)

    @property
    def tpot_headroom_ms(self) -> FloatArray:
        """Milliseconds by which an output token is expected before its limit; NaN without a prediction."""
        return self._row(3)

    @property
    def is_known(self) -> Mask:
        """Whether there is a prediction."""
        return ~np.isnan(self._row(0))

    @property
    def has_room(self) -> Mask:
        """Whether neither headroom is negative; false without a prediction."""
        return (self._row(2) >= 0.0) & (self._row(3) >= 0.0)

    def take(self, rows: RowArray) -> Predictions:
        """Return the predictions of some rows, in their order."""
        return Predictions(self.figures[:, rows])

    def lasting(self) -> Predictions:
        """Return the same in 32 bits."""
        return Predictions(self.figures.astype(np.float32))

    def _row(self, number: int) -> FloatArray:
        if self.figures.dtype == np.float64:  # those of a kept decision have fewer digits
            row: FloatArray = self.figures[number]
            return row
        return shown(self.figures[number])
