"""What a cost model expects of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import RequestView
from .held_prompts import Sharing
from .lines import PREFILL
from .operations import same_everywhere


class Expected(NamedTuple):
    """What is expected of one request on each candidate.

    Attributes:
        request: the request.
        candidates: the endpoints.
        accounts: see `Accounts.columns`.
        features: of the time to first token, shape (d, n).
        costs: milliseconds per unit of each, the pace of the endpoints included; shape (d, n).
        ttft_ms: expected milliseconds to first token, by endpoint.
        residence_ms: see `CostModel.residence_ms`.
        pace: factor of all times of each endpoint, or 1.
        sharing: own requests under way that share leading tokens of its prompt.
    """

    request: RequestView
    candidates: Candidates
    accounts: FloatArray
    features: FloatArray
    costs: FloatArray
    ttft_ms: FloatArray
    residence_ms: float
    pace: FloatArray | float
    sharing: Sequence[Sharing] = ()

    def is_of(self, request: RequestView) -> bool:
        """Return whether it is of this request, which every profile may see with other peer labels."""
        own = self.request
        if own is request:
            return True
        if own.headers is not request.headers or own.prefix is not request.prefix:
            return False
        return own.now == request.now and own.n_tokens == request.n_tokens

    @property
    def terms_ms(self) -> FloatArray:
        """Milliseconds of each feature, in the order of `CostModel.terms`; shape (d, n)."""
        return self.costs * self.features

    @property
    def is_new(self) -> bool:
        """See `same_everywhere`."""
        return same_everywhere(self.features[PREFILL])
