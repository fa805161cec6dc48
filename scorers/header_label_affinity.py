"""`header-label-affinity-scorer`: prefers endpoints whose label has the value of a request header."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from .core.candidates import Candidates
from .core.model import RequestView
from .core.params import PluginParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry

Name = Annotated[str, Meta(min_length=1, max_length=256)]


class HeaderLabelAffinityParams(PluginParams, frozen=True):
    """Parameters of `header-label-affinity-scorer`."""

    header_name: Name
    """Name of the request header."""
    label_key: Name
    """Name of the label."""


class HeaderLabelAffinityScorer:
    """Score 1 for endpoints whose label equals the header, else 0.

    Ties: endpoints with the same value score the same; without the header all score 0.

    Args:
        header: lower-case name.
        label: name of the label.
    """

    type = "header-label-affinity-scorer"

    def __init__(self, header: str, label: str) -> None:
        self._header, self._label = header, label

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is 1 for an equal label, None without the header."""
        wanted = request.headers.get(self._header)
        if not wanted:
            return Ratings(np.zeros(len(candidates)))
        scores = candidates.labelled(self._label).mapped(lambda value: float(value == wanted))
        return Ratings(scores, Inputs(scores))


def register(registry: Registry) -> None:
    """Register `header-label-affinity-scorer`."""
    registry.scorers.add(
        HeaderLabelAffinityScorer.type,
        HeaderLabelAffinityParams,
        lambda params, _: HeaderLabelAffinityScorer(params.header_name.strip().lower(), params.label_key),
    )
