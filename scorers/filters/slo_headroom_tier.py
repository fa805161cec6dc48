"""`slo-headroom-tier-filter`: keeps the endpoints that are expected to meet the objectives of the request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Verdicts, keep_all
from ..core.registry import Registry


class SloHeadroomTierParams(PluginParams, frozen=True):
    """Parameters of `slo-headroom-tier-filter`."""

    epsilon_explore_neg: Annotated[float, Meta(ge=0, le=1)] = field(default=0.01)
    """Share of the requests for which the endpoints that miss an objective are kept instead."""
    latency_prediction_info_producer_name: str = ""
    """Name of the `predicted-latency-producer` in `plugins`; empty: the one that there is."""


class SloHeadroomTierFilter:
    """Filter that keeps the endpoints with no negative headroom, or for a random share of the requests the others.

    Endpoints without a prediction count as others. It keeps all if nothing is predicted, or if all are of one kind.

    Args:
        explore: share of the requests for which the others are kept.

    Source: the reference's plugin of that name.
    """

    type = "slo-headroom-tier-filter"

    def __init__(self, explore: float) -> None:
        self._explore = explore

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        predictions = candidates.predictions
        if len(candidates) <= 1 or predictions is None or not predictions.is_known.any():
            return keep_all(candidates)
        meets = predictions.has_room
        if meets.all() or not meets.any():
            return keep_all(candidates)
        if rng() < self._explore:
            return Verdicts(
                ~meets, lambda dropped: ["meets the objectives; others are explored"] * len(dropped)
            )
        return Verdicts(meets, _reasons)


def _reasons(dropped: Candidates) -> list[str]:
    predictions = dropped.predictions
    if predictions is None:
        return ["no prediction"] * len(dropped)
    rooms = zip(predictions.ttft_headroom_ms.tolist(), predictions.tpot_headroom_ms.tolist(), strict=True)
    return [
        f"headroom of the first token {first:.0f} ms, of an output token {token:.1f} ms"
        if first == first  # noqa: PLR0124 - false for NaN
        else "no prediction"
        for first, token in rooms
    ]


def register(registry: Registry) -> None:
    """Register `slo-headroom-tier-filter`."""
    registry.filters.add(SloHeadroomTierFilter.type, SloHeadroomTierParams, _make)


def _make(params: SloHeadroomTierParams, context: BuildContext) -> SloHeadroomTierFilter:
    context.known_predictor(params.latency_prediction_info_producer_name)
    return SloHeadroomTierFilter(params.epsilon_explore_neg)
