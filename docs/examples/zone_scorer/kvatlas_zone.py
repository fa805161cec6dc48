"""A scorer that prefers endpoints of one zone."""

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.params import PluginParams
from kvatlas.scorers.core.ratings import Ratings


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

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one score per candidate, in the same order."""
        zones = candidates.labelled(self._params.label)
        return Ratings(zones.mapped(lambda zone: float(zone == self._params.zone)))
