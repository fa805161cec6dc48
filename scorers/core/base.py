"""The contracts of filters, scorers and pickers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from .decision import Decision
from .model import Candidate, Ratings, RequestView

Rng = Callable[[], float]
"""Uniform draw from [0, 1), given by the caller so that decisions can be repeated."""

Verdicts = Sequence[str | None]
"""One verdict a candidate, in the candidates' order: None keeps it, a text says why it is dropped."""


class Filter(Protocol):
    """Drops candidates before anything is scored."""

    @property
    def type(self) -> str:
        """Plugin type, the word in configuration."""
        ...

    def judge(self, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng) -> Verdicts:
        """One verdict a candidate, in the same order, whatever that order is."""
        ...


class Scorer(Protocol):
    """Rates candidates; equal input and equal history give equal ratings."""

    @property
    def type(self) -> str:
        """Plugin type, the word in configuration."""
        ...

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate, in the same order, whatever that order is."""
        ...


class Picker(Protocol):
    """Chooses among totals."""

    @property
    def type(self) -> str:
        """Plugin type, the word in configuration."""
        ...

    def pick(self, totals: Sequence[float], *, rng: Rng) -> tuple[list[int], bool]:
        """Indices of the chosen, best first, at least one, and whether chance decided the first.

        Args:
            totals: at least one, all finite.
            rng: uniform draws.
        """
        ...


# What a plugin may do besides. It keeps its state to itself, bounded, and gets the time with the request.


@runtime_checkable
class LearnsFromPicks(Protocol):
    """A plugin that wants to know where requests went."""

    def picked(self, request: RequestView, decision: Decision) -> None:
        """A request was routed to `decision.picked`. Not called for decisions that route nothing."""
        ...


@runtime_checkable
class LearnsFromAnswers(Protocol):
    """A plugin that wants to know how long the first token took."""

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """The first bytes of a streamed answer came `ttft_s` seconds after the pick."""
        ...


@runtime_checkable
class MarksResponses(Protocol):
    """A plugin that leaves something in the response for the client's next request."""

    def response_headers(self, decision: Decision) -> Mapping[str, str]:
        """Lower-case name -> value of headers to set on the response to a routed request."""
        ...
