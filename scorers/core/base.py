"""Protocols of filters, scorers, pickers, admitters and predictors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from .candidates import Candidates
from .columns import FloatArray
from .decision import Decision
from .model import Candidate, RequestView
from .predictions import Predictions
from .ratings import Ratings, Verdicts

Rng = Callable[[], float]
"""Uniform draw from [0, 1), passed by the caller so that decisions can be repeated."""


class Filter(Protocol):
    """Plugin that drops candidates before they are scored."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:
        """Return one verdict per candidate, at least one, in their order. The result must not depend on that order."""
        ...


class Scorer(Protocol):
    """Plugin that rates candidates; equal input and equal history give equal ratings."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one score per candidate, at least one, in their order. The result must not depend on that order."""
        ...


class Picker(Protocol):
    """Plugin that chooses endpoints by their totals."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def pick(self, totals: FloatArray, *, rng: Rng) -> tuple[Sequence[int], bool]:
        """Return at least one index, best first, and whether chance decided the first.

        Args:
            totals: at least one, all finite.
            rng: uniform draws.
        """
        ...


@runtime_checkable
class PicksNear(Protocol):
    """Picker that can leave nearly equal totals to chance."""

    def pick_near(self, totals: FloatArray, resolution: float, *, rng: Rng) -> tuple[Sequence[int], bool]:
        """Return at least one index, best first, and whether chance decided the first.

        Args:
            totals: at least one, all finite.
            resolution: difference below which totals count as nearly equal, above 0.
            rng: uniform draws.
        """
        ...


class Decider(Protocol):
    """Plugin that decides whether a stage of a request is done by an endpoint of its own."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def wants(self, request: RequestView, endpoint: Candidate | None) -> bool:
        """Return whether the stage is wanted.

        Args:
            request: the request.
            endpoint: the endpoint that would do it otherwise, None if it is not chosen yet.
        """
        ...


class RunProfile(Protocol):
    """Runs profiles for one request; given to handlers."""

    def __call__(self, profile: str, *, peer: Candidate | None = None) -> Decision:
        """Return the decision of a profile of that name, which picked nothing if its filters dropped all candidates.

        Args:
            profile: name of a profile of the configuration.
            peer: endpoint that does the other stage of the request, None if none is chosen yet.
        """
        ...


class Handler(Protocol):
    """Plugin that runs profiles for a request, and composes a placement of their decisions.

    Its optional methods below get the decision of the endpoint that answers, with the placement.
    """

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def place(self, request: RequestView, candidates: Candidates, run: RunProfile, *, rng: Rng) -> Decision:
        """Return the decision of the endpoint that answers, with a placement; nothing is picked if there is none.

        Args:
            request: the request.
            candidates: all endpoints, of all stages, with their prefixes; at least one.
            run: runs a profile on them.
            rng: uniform draws.
        """
        ...


class LoadEstimate(Protocol):
    """What a request adds to the load of its endpoint, beside its uncached prompt tokens."""

    @property
    def adds_output(self) -> bool:
        """Return whether output tokens count."""
        ...

    def output_tokens(self, n_prompt: int, *, asked: int | None) -> int:
        """Return the estimated output tokens that count, for a prompt of `n_prompt` tokens.

        Args:
            n_prompt: prompt tokens.
            asked: the client's own limit, None if it sets none.
        """
        ...


class Admitter(Protocol):
    """Plugin that refuses requests before the filters see them."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def admit(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> str | None:
        """Return why the request is refused, in words for the client; None to admit it. There is at least one candidate."""
        ...


class Predictor(Protocol):
    """Plugin that predicts the times of a request, once, for all plugins that read `Candidates.predictions`."""

    @property
    def type(self) -> str:
        """Return the plugin type, its name in the configuration."""
        ...

    def predict(self, request: RequestView, candidates: Candidates) -> Predictions | None:
        """Return what is expected of each candidate, None if nothing is known yet."""
        ...


# Optional methods of a plugin. Its state must be private and bounded; it gets the time with the request.


@runtime_checkable
class LearnsFromPicks(Protocol):
    """Plugin with a callback for routed requests."""

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Handle a request that was routed to `decision.picked`. Not called for decisions that route nothing."""
        ...


@runtime_checkable
class LearnsFromAnswers(Protocol):
    """Plugin with a callback for the time to first token."""

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Handle the first bytes of a streamed response, which came `ttft_s` seconds after the pick.

        Called for requests whose pick the plugin saw, also if another configuration is in force by then. With several profiles the
        plugins of that one are called which chose the endpoint that computed the prompt, and those that act once, with the decision
        of the endpoint that answers.
        """
        ...


@runtime_checkable
class ReadsMedia(Protocol):
    """Plugin that reads `RequestView.media`, which is empty if no plugin of the profile does."""

    @property
    def reads_media(self) -> bool:
        """Return True."""
        ...


@runtime_checkable
class AcceptsOldLoad(Protocol):
    """Plugin that needs no fresh load of endpoints that serve only known requests; they are scraped less often."""

    @property
    def max_load_age_s(self) -> float:
        """Return the age up to which such a load will do, in seconds; infinite if the plugin reads no scraped figure."""
        ...


@runtime_checkable
class LearnsFromEnds(Protocol):
    """Plugin with a callback for the end of a routed request."""

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Handle the end of a routed request, however it ended.

        Called once for each request whose pick the plugin saw, also if another configuration is in force by then.

        Args:
            decision: that routed it.
            tpot_s: seconds per output token after the first of a response streamed to its end by the picked endpoint, of one
                choice if there are several; None for any other, and if there are several prompts.
        """
        ...


@runtime_checkable
class LearnsFromRefusals(Protocol):
    """Plugin with a callback for requests whose prompt the picked endpoint did not compute."""

    def refused(self, decision: Decision) -> None:
        """Handle the end of a request that the picked endpoint did not compute; called before `ended`.

        It responded with an error status, another endpoint responded, or the client left before the first byte of the response.
        """
        ...


@runtime_checkable
class LearnsFromLengths(Protocol):
    """Plugin with a callback for the number of generated tokens."""

    def generated(self, decision: Decision, *, n_tokens: int) -> None:
        """Handle the length of a response of the picked endpoint, as its engine counted it; called before `ended`.

        Of several choices it is the mean; it is not called for a request with several prompts.
        """
        ...


@runtime_checkable
class MarksResponses(Protocol):
    """Plugin that sets response headers for the client's next request."""

    def response_headers(self, decision: Decision) -> Mapping[str, str]:
        """Return the headers to set on the response to a routed request, lower-case name -> value."""
        ...
