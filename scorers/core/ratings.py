"""What plugins return: scores with their inputs, and masks with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from .candidates import Candidates
from .columns import FloatArray, Mask, SmallFloats

InputsOf: TypeAlias = Callable[[Candidates], FloatArray]
"""Reads the inputs from a table; must depend on nothing else, since it is called when a decision is explained."""


class Parts(NamedTuple):
    """Parts that add up to the inputs of scores.

    Attributes:
        names: of the parts.
        values: shape (parts, candidates), in the unit of the inputs.
    """

    names: tuple[str, ...]
    values: FloatArray | SmallFloats


class Inputs(msgspec.Struct, frozen=True):
    """Inputs of scores, shown when a decision is explained.

    Attributes:
        raw: one input per candidate in the scorer's own unit, NaN if unknown; or a function that reads them from the table.
            A function costs nothing until someone asks.
        is_load: whether they are part of the load, so that they have its age.
        parts: parts that add up to them, None if they have none.
    """

    raw: FloatArray | SmallFloats | InputsOf
    is_load: bool = False
    parts: Parts | None = None

    def column(self, candidates: Candidates) -> FloatArray | SmallFloats:
        """Return the inputs by row."""
        return self.raw(candidates) if callable(self.raw) else self.raw

    def lasting(self) -> Inputs:
        """Return the same in at most 32 bits, in arrays of its own."""
        if callable(self.raw):
            return self
        parts = self.parts
        small = parts and Parts(parts.names, parts.values.astype(np.float32))
        return Inputs(self.raw.astype(np.float32), is_load=self.is_load, parts=small)

    @property
    def n_bytes(self) -> int:
        """Memory of its arrays."""
        if callable(self.raw):
            return 0
        return self.raw.nbytes + (self.parts.values.nbytes if self.parts is not None else 0)

    def ages_s(self, candidates: Candidates, *, now: float) -> FloatArray:
        """Return the ages of known inputs in seconds, never negative; NaN if they have none."""
        if not self.is_load:
            return np.full(len(candidates), np.nan)
        ages = np.maximum(0.0, now - candidates.updated_at)
        return np.where(np.isnan(self.column(candidates)), np.nan, ages)


WAITING = Inputs(attrgetter("waiting"), is_load=True)
RUNNING = Inputs(attrgetter("running"), is_load=True)
KV_UTILIZATION = Inputs(attrgetter("kv_utilization"), is_load=True)
IN_FLIGHT_REQUESTS = Inputs(attrgetter("in_flight_requests"))


class Ratings(msgspec.Struct, frozen=True, gc=False):
    """One scorer's view of all candidates.

    Attributes:
        scores: 0 (worst) to 1 (best), one per candidate.
        inputs: inputs of the scores, None if there are none to show.
        resolution: difference from the best score below which chance decides; 0 if only between equal scores.
    """

    scores: FloatArray
    inputs: Inputs | None = None
    resolution: float = 0.0


Reasons: TypeAlias = Callable[[Candidates], Sequence[str]]
"""Makes the reasons for people, one per row of a table of dropped candidates; called when a decision is explained."""


class Verdicts(msgspec.Struct, frozen=True):
    """One filter's view of all candidates.

    Attributes:
        keep: whether a candidate is kept, one per candidate.
        reasons: makes the reasons for the others.
    """

    keep: Mask
    reasons: Reasons


def keep_all(candidates: Candidates) -> Verdicts:
    """Return verdicts that keep every candidate."""
    return Verdicts(np.ones(len(candidates), np.bool_), lambda _: ())
