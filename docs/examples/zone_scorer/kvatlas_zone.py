"""A scorer that prefers endpoints of one zone."""

from collections.abc import Sequence

from kvatlas.scorers.core.model import Candidate, Rating, Ratings, RequestView
from kvatlas.scorers.core.params import PluginParams


class ZoneParams(PluginParams, frozen=True):
    """Parameters of `zone-scorer`; any other key is an error."""

    zone: str
    """The zone to prefer."""
    label: str = "zone"
    """The endpoints' label that names their zone."""


class ZoneScorer:
    """Score 1 for an endpoint of the zone, else 0. Ties: endpoints of one zone score the same."""

    type = "zone-scorer"
    Params = ZoneParams

    def __init__(self, params: ZoneParams) -> None:
        self._params = params

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate, in the same order."""
        is_near = [each.labels.get(self._params.label) == self._params.zone for each in candidates]
        return [Rating(raw=None, score=float(near)) for near in is_near]
