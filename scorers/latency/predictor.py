"""`predicted-latency-producer`: predicts times from learned costs, for the plugins that compare them with objectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, field

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.ignored import Ignored
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.predictions import Predictions
from ..core.registry import Registry
from ..core.shared import SharedSums
from ..core.slo import slo_of
from .cost_model import CostModel
from .expected import Expected
from .objectives import tpot_limit
from .params import LatencyCostParams

PREFILL_ROLE = "prefill"
"""Value of the role label of endpoints that generate no tokens. Source: the reference."""


class PredictedLatencyParams(PluginParams, frozen=True):
    """Parameters of `predicted-latency-producer`."""

    slo_buffer_factor: Annotated[float, Meta(gt=0)] = 1.0
    """Factor of every objective for the time per output token, of the request and of those running beside it."""
    streaming_mode: bool = False
    """Whether the time per output token counts; otherwise its headroom is 0 everywhere."""
    endpoint_role_label: str = ""
    """Label with the role of an endpoint: roles have costs of their own, and `prefill` has no time per output token."""
    predict_in_produce: bool = True
    """false: costs are learned, and nothing is predicted."""
    sampling_mean: Annotated[float, Meta(gt=0), Ignored("every streamed response is an observation")] = 1000.0
    """Accepted without effect: every streamed response is an observation."""
    max_decode_token_samples_for_prediction: Annotated[
        int, Meta(ge=0), Ignored("the time per output token is the mean of the whole response")
    ] = 0
    """Accepted without effect: the time per output token is the mean of the whole response."""
    context_ttl: Annotated[int | str, Ignored("what is kept of a request ends with its response")] = field(
        default=300_000_000_000, name="contextTTL"
    )
    """Accepted without effect: what is kept of a request ends with its response."""
    use_encoder_cache_features: Annotated[bool, Ignored("images are no part of the costs")] = False
    """Accepted without effect: images are no part of the costs."""
    prefix_match_info_producer_name: str = ""
    """Accepted without effect: the costs know every tier."""
    in_flight_load_producer_name: str = ""
    """Accepted without effect: kvatlas keeps one account of requests in flight."""


class LatencyPredictor:
    """Predictor with one model for all requests, learned from streamed responses. It predicts nothing before it has learned.

    The limit of the time per output token is the lowest objective among the request and those running on the endpoint.

    Args:
        params: what counts.
        tiers: names of the configured tiers, fastest first.

    Attributes:
        model: predicts and learns.
    """

    type = "predicted-latency-producer"

    def __init__(self, params: PredictedLatencyParams, tiers: Sequence[str]) -> None:
        self._params = params
        self.model = CostModel(LatencyCostParams(group_label=params.endpoint_role_label), tiers)
        self._running: dict[str, Counter[float]] = {}
        """Endpoint -> objectives for the time per output token of the requests running there, in milliseconds."""

    def predict(self, request: RequestView, candidates: Candidates) -> Predictions | None:
        """Return the predictions, None while too few times to first token are known."""
        if not self._params.predict_in_produce:
            return None
        model = self.model
        expected = model.expect(request, candidates)
        if not model.ttft.fits.has_learned:
            return None
        ttft_ms = model.ttft.fits.where_learned(candidates, expected.ttft_ms)
        slo = slo_of(request.headers)
        ttft_limit, tpot_limit = (slo.ttft_ms or 0.0, slo.tpot_ms or 0.0) if slo is not None else (0.0, 0.0)
        figures = np.empty((4, len(candidates)))
        figures[0], figures[1] = ttft_ms, np.nan
        figures[2], figures[3] = ttft_limit - ttft_ms, 0.0
        if self._params.streaming_mode:
            self._add_tpot(figures, expected, tpot_limit)
        figures[3, np.isnan(ttft_ms)] = np.nan
        return Predictions(figures)

    def shared_sums(self) -> Mapping[str, SharedSums]:
        """See `SharesSums`."""
        return self.model.shared_sums()

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from the time to first token of a streamed response, which is that of the endpoint that computed the prompt."""
        self.model.answered(decision, ttft_s=ttft_s)
        computing = decision.computing
        if computing is not decision:
            self.model.answered(computing, ttft_s=ttft_s)
            self.model.ended(computing, tpot_s=None)

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Follow a request that was sent to an endpoint, and its part at another one that computes the prompt; note its objective."""
        computing = decision.computing
        self.model.picked(request, decision, *([] if computing is decision else [computing]))
        limit = tpot_limit(decision)
        if limit is not None:
            self._running.setdefault(decision.picked[0], Counter())[limit] += 1

    def generated(self, decision: Decision, *, n_tokens: int) -> None:
        """Learn from the length of a response."""
        self.model.generated(decision, n_tokens=n_tokens)

    def refused(self, decision: Decision) -> None:
        """Take back the work of a request whose prompt was not computed."""
        self.model.refused(decision)
        if decision.computing is not decision:
            self.model.refused(decision.computing)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Learn from the time per output token, and forget the request with its objective."""
        self.model.ended(decision, tpot_s=tpot_s)
        if decision.computing is not decision:
            self.model.ended(decision.computing, tpot_s=None)
        limit = tpot_limit(decision)
        running = self._running.get(decision.picked[0]) if limit is not None else None
        if running is None or limit is None or limit not in running:
            return  # it was picked before this predictor was in force
        running[limit] -= 1
        if not running[limit]:
            del running[limit]
        if not running:
            del self._running[decision.picked[0]]

    def _add_tpot(self, figures: FloatArray, expected: Expected, limit: float) -> None:
        """Fill in time per output token and its headroom, where it is learned and the endpoint generates tokens."""
        candidates, fits = expected.candidates, self.model.tpot.fits
        if not fits.has_learned:
            return
        tpot_ms = fits.where_learned(candidates, self.model.tpot_ms(expected))
        limits = np.full(len(candidates), limit)
        for endpoint, running in self._running.items():
            row = candidates.row(endpoint)
            if row is not None:
                limits[row] = min(limit, *running)
        label = self._params.endpoint_role_label
        generates = ~np.isnan(tpot_ms)
        if label:
            generates &= candidates.labelled(label).where(lambda role: role != PREFILL_ROLE)
        figures[1] = np.where(generates, tpot_ms, np.nan)
        figures[3] = np.where(generates, self._params.slo_buffer_factor * limits - tpot_ms, 0.0)


def register(registry: Registry) -> None:
    """Register `predicted-latency-producer`."""
    registry.predictors.add(LatencyPredictor.type, PredictedLatencyParams, _make)


def _make(params: PredictedLatencyParams, context: BuildContext) -> LatencyPredictor:
    return LatencyPredictor(params, context.tiers)
