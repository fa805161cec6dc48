"""Types of columns, and the arithmetic that scorers share."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
"""One number per row, or several rows of them; NaN is unknown."""

CodeArray: TypeAlias = NDArray[np.int8]
"""Codes of a small set of values, one per row."""

RowArray: TypeAlias = NDArray[np.intp]
"""Row numbers."""

Mask: TypeAlias = NDArray[np.bool_]
"""Whether a row is kept, one per row."""


def unknown_as_zero(scores: FloatArray) -> FloatArray:
    """Return scores of at least 0, with 0 for an unknown input (NaN): what is not known must not look good."""
    return np.fmax(scores, 0.0)
