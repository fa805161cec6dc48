"""A scorer that writes down its callbacks, offered as another package would."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import ClassVar

import numpy as np

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.params import PluginParams
from kvatlas.scorers.core.ratings import Inputs, Ratings


class ToldParams(PluginParams, frozen=True):
    """Parameters of `Told`.

    Attributes:
        version: another one makes another plugin.
    """

    version: int = 1


class Told:
    """A scorer that prefers no endpoint.

    Attributes:
        calls: (callback, decision), in their order.
    """

    type: ClassVar[str] = "told"
    Params = ToldParams
    made: ClassVar[list[Told] | None] = None
    """A list to which each new one is added, if a test gives one."""

    def __init__(self, _: ToldParams) -> None:
        self.calls: list[tuple[str, Decision]] = []
        if self.made is not None:
            self.made.append(self)

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """See `Scorer`."""
        nothing = np.zeros(len(candidates))
        return Ratings(nothing, Inputs(nothing))

    def picked(self, request: RequestView, decision: Decision) -> None:  # noqa: ARG002 (LearnsFromPicks)
        """See `LearnsFromPicks`."""
        self.calls.append(("picked", decision))

    def answered(self, decision: Decision, *, ttft_s: float) -> None:  # noqa: ARG002 (LearnsFromAnswers)
        """See `LearnsFromAnswers`."""
        self.calls.append(("answered", decision))

    def generated(self, decision: Decision, *, n_tokens: int) -> None:  # noqa: ARG002 (LearnsFromLengths)
        """See `LearnsFromLengths`."""
        self.calls.append(("generated", decision))

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:  # noqa: ARG002 (LearnsFromEnds)
        """See `LearnsFromEnds`."""
        self.calls.append(("ended", decision))


OFFERED = EntryPoints([EntryPoint("told", "support.told:Told", "kvatlas.scorers")])
"""The installed packages' entry points, if the package of `Told` was the only one."""
