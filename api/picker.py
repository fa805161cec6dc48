"""The endpoint picker: a request in, the endpoint to send it to out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ..indexer.prefix import Prefix
from ..scorers.decision import Decision
from ..scorers.model import RequestView
from ..scorers.profile import Profile
from .fleet import Fleet
from .metrics import Metrics
from .routing import Refusal, RefusalCode, Route, RoutingRequest
from .tokenization.errors import RequestError
from .tokenization.model import Prompt
from .tokenization.pipeline import PromptPipeline

log = logging.getLogger(__name__)

NO_CANDIDATES = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE,
    "failed to find endpoint candidates for serving the request",
    dropped_reason="rejected-no-endpoints",
)


class Picker:
    """Tokenizes, matches, scores and picks. Implements `api.routing.Router`.

    Args:
        pipeline: bodies to token ids.
        fleet: endpoints.
        profile: scorers and picker.
        metrics: counters.
        rng: uniform draws for ties.
    """

    def __init__(
        self,
        *,
        pipeline: PromptPipeline,
        fleet: Fleet,
        profile: Profile,
        metrics: Metrics,
        rng: Callable[[], float],
    ) -> None:
        self.pipeline, self.fleet = pipeline, fleet
        self._profile, self._metrics, self._rng = profile, metrics, rng

    async def route(self, request: RoutingRequest) -> Route | Refusal:
        """See `Router.route`."""
        started = time.perf_counter()
        outcome = await self._route(request)
        match outcome:
            case Route(decision=decision):
                self._account(decision)
            case Refusal(code=code):
                self._metrics.refused(code.value)
        self._metrics.decision_seconds.observe(time.perf_counter() - started)
        return outcome

    def decide(
        self,
        *,
        model: str,
        prefix: Prefix | None,
        reason: str | None = None,
        subset: frozenset[str] | None = None,
    ) -> Decision | None:
        """Score all endpoints without routing anything; None when there is no endpoint.

        Args:
            model: as asked for.
            prefix: block keys of the prompt, None without.
            reason: why there are none.
            subset: addresses allowed, None allows all.
        """
        now = time.monotonic()
        candidates = self.fleet.candidates(prefix, now=now, subset=subset)
        if not candidates:
            return None
        view = RequestView(model=model, now=now, n_tokens=prefix.n_tokens if prefix else 0)
        decision = self._profile.decide(view, candidates, rng=self._rng)
        return replace(decision, no_prefix_reason=reason) if reason else decision

    def prefix(self, prompt: Prompt | None) -> Prefix | None:
        """Block keys of a prompt, None when it has no tokens."""
        if prompt is None or prompt.tokens is None:
            return None
        return self.fleet.atlas.prefix(prompt.tokens, lora=prompt.lora, salt=prompt.cache_salt)

    async def _route(self, request: RoutingRequest) -> Route | Refusal:
        prompt: Prompt | None = None
        if request.has_body:
            try:
                prompt = await self.pipeline.prompt(request.path, request.body)
            except RequestError as error:
                return Refusal(RefusalCode.BAD_REQUEST, str(error))
        prefix = self.prefix(prompt)
        decision = self.decide(
            model=prompt.model if prompt else "",
            prefix=prefix,
            reason=prompt.reason.value if prompt and prompt.reason else None,
            subset=request.subset,
        )
        if decision is None:
            return NO_CANDIDATES
        addresses = {scored.candidate.name: scored.candidate.address for scored in decision.scored}
        if prefix is not None:
            self.fleet.atlas.routed(decision.picked[0], prefix)
        return Route(tuple(addresses[name] for name in decision.picked), decision)

    def _account(self, decision: Decision) -> None:
        picked = decision.picked[0]
        self._metrics.picked(picked)
        if decision.no_prefix_reason is not None:
            self._metrics.no_prefix(decision.no_prefix_reason)
        self._metrics.prompt_tokens.inc(decision.n_tokens)
        for scored in decision.scored:
            if scored.candidate.name == picked and scored.candidate.prefix is not None:
                self._metrics.usable_tokens.inc(scored.candidate.prefix.usable_tokens)
        for fault in decision.faults:
            self._metrics.scorer_fault(fault.name)
