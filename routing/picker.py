"""The endpoint picker: a request in, the endpoint to send it to out."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ..configs.schema import AdmissionConfig
from ..fleet.fleet import Fleet
from ..indexer.prefix import Prefix
from ..scorers.core.base import Rng
from ..scorers.core.decision import Decision, Origin, PluginFault
from ..scorers.core.model import RequestView
from ..scorers.core.profile import Profile
from ..scorers.core.shadow import Draws
from ..tokenization.encoding.byte_form import prompt_bytes
from ..tokenization.errors import RequestError
from ..tokenization.eventual import Eventual, Known
from ..tokenization.model import ParsedRequest, Prompt
from ..tokenization.requests.request import parse_body
from .admission import Admission
from .control_headers import MAX_ID_CHARS, fairness_id, model_rewrite, objective, only_if_cached, traceparent
from .decision_log import DecisionLog
from .metrics import RoutingMetrics
from .model_rewrite import ModelRules, rewritten, target_by_rules
from .observers.observers import Observers
from .router import ModelRewrite, Overload, Refusal, RefusalCode, Route, Router, RoutingRequest, RoutingResult

log = logging.getLogger(__name__)

NO_CANDIDATES = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE,
    "failed to find endpoint candidates for serving the request",
    dropped_reason="rejected-no-endpoints",
)

NONE_LEFT = Refusal(
    RefusalCode.RESOURCE_EXHAUSTED,
    "no endpoints available for the given request",
    dropped_reason="rejected-saturated",
)
"""Filters dropped every candidate. Source: text and reason are the reference's."""

NOT_CACHED = Refusal(RefusalCode.PRECONDITION_FAILED, "no decode worker has the requested KV cache")
"""Answer to `Prefer: if-available`. Source: the text is the reference's."""

NOT_REWRITTEN = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE, "too much load to rewrite the model of a request; try again"
)
"""A request past a limit is routed without its body; to the model it does not want it must not go."""

NOT_TOLD = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE, "too much load to see which model a request is for; try again"
)
"""The same where endpoints have different models."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What decides, by one configuration.

    Attributes:
        generation: of the configuration.
        profile: filters, scorers and picker.
        admission: who is turned away.
    """

    generation: int
    profile: Profile
    admission: Admission = field(default_factory=lambda: Admission(AdmissionConfig()))


class Tokenizes(Protocol):
    """What turns requests into prompts."""

    def tokenize(self, request: ParsedRequest) -> Eventual[Prompt]:
        """See `PromptPipeline.tokenize`."""
        ...


class Picker(Router):
    """Admits, tokenizes, matches, scores, picks and accounts.

    A decision is made in one step by one policy and the fleet as it is; both change together, between two steps.

    Args:
        pipeline: bodies to token ids.
        endpoint_labels: labels that an endpoint has to have for requests that name this model; None where endpoints do
            not differ in that.
        fleet: endpoints.
        policy: what decides, until `use`.
        metrics: counters.
        decisions: where decisions on requests are kept.
        rng: uniform draws for ties.
        n_fallbacks: endpoints named after the picked ones.
        rules: which models take the place of others where no header says so, None for none.
        observers: what looks on; None for nothing.
    """

    def __init__(
        self,
        *,
        pipeline: Tokenizes,
        fleet: Fleet,
        policy: Policy,
        metrics: RoutingMetrics,
        decisions: DecisionLog,
        rng: Callable[[], float],
        n_fallbacks: int = 0,
        rules: ModelRules | None = None,
        endpoint_labels: Callable[[str], Mapping[str, str]] | None = None,
        observers: Observers | None = None,
    ) -> None:
        self.pipeline, self.fleet, self.decisions = pipeline, fleet, decisions
        self._policy, self._metrics, self._rng = policy, metrics, rng
        fleet.forgotten.append(metrics.forget)
        self._n_fallbacks, self._endpoint_labels = n_fallbacks, endpoint_labels
        self._rules, self._observers = rules, observers
        self._faults_said: set[tuple[str, str]] = set()

    def use(self, policy: Policy) -> None:
        """Decide by another configuration from now on."""
        self._policy = policy

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        """See `Router.route`."""
        started = time.perf_counter()
        origin = self._origin(request)
        rewrite = self._admitted(request, origin.priority)
        if isinstance(rewrite, Refusal):
            return Known(self._told(rewrite, started))
        try:
            prompt = self._prompt(request, rewrite)
        except RequestError as error:
            return Known(self._told(Refusal(RefusalCode.BAD_REQUEST, str(error)), started))
        return prompt.map(lambda known: self._told(self._decided(request, origin, known, rewrite), started))

    def decide(
        self,
        *,
        model: str,
        prefix: Prefix | None,
        prompt: Prompt | None = None,
        subset: frozenset[str] | None = None,
    ) -> Decision | None:
        """Score all endpoints without routing anything; None when there is no endpoint.

        Args:
            model: as asked for.
            prefix: block keys of the prompt, None without.
            prompt: what they were made of, None when they came by themselves.
            subset: addresses allowed, None allows all.
        """
        return self._decide(_view(model, prefix), prefix, prompt=prompt, subset=subset)

    def answer_begun(self, route: Route, *, is_first_token: bool, served: str | None) -> None:
        """The first bytes of the answer came.

        Args:
            route: where the request was sent.
            is_first_token: whether they are the model's first token, as in a streamed answer.
            served: address of the endpoint that answered, None when the gateway does not tell.
        """
        if route.booking is None:
            return
        route.booking.begun()
        if is_first_token and served in (None, route.addresses[0]):
            ttft_s = time.monotonic() - route.booking.at
            self._count_faults(self._policy.profile.answered(route.decision, ttft_s=ttft_s))
            if self._observers is not None:
                self._observers.answered(route.decision, ttft_s=ttft_s)

    def answer_ended(self, route: Route, *, was_computed: bool, is_hidden: bool = False) -> None:
        """The answer ended, or will not come, or nothing of it will be shown.

        Args:
            route: where the request was sent.
            was_computed: whether the endpoint can be taken to have computed the prompt.
            is_hidden: whether the answer goes on for all that is known.
        """
        if route.booking is not None:
            if is_hidden:
                route.booking.unseen()
            else:
                route.booking.ended()
        if route.prediction is not None and not was_computed:
            self.fleet.predictions.withdraw(route.prediction)

    def prefix(self, prompt: Prompt | None) -> Prefix | None:
        """Block keys of a prompt, None when it has none.

        Where ids are missing but the text is not, an endpoint without events can still be known by the text's bytes.
        """
        if prompt is None:
            return None
        atlas, lora, salt = self.fleet.atlas, prompt.lora, prompt.cache_salt
        if prompt.tokens is not None:
            more = prompt.cut is not None
            return atlas.prefix(prompt.tokens, media=prompt.media, lora=lora, salt=salt, more=more)
        if prompt.unencoded is None or not atlas.learns_from_routing:
            return None
        text = prompt_bytes(prompt.unencoded)
        return None if text is None else atlas.byte_prefix(text, lora=lora, salt=salt)

    def _prompt(self, request: RoutingRequest, rewrite: ModelRewrite | None) -> Eventual[Prompt | None]:
        if not request.has_body or request.overload is not None:
            return Known(None)
        body = rewrite.body if rewrite else request.body
        return self.pipeline.tokenize(parse_body(request.path, body))

    def _told(self, outcome: RoutingResult, started: float) -> RoutingResult:
        """`outcome`, once it is counted."""
        if isinstance(outcome, Route):
            self._account(outcome.decision)
        else:
            self._metrics.refused(outcome.code.value)
        self._metrics.decision_seconds.observe(time.perf_counter() - started)
        return outcome

    def _admitted(self, request: RoutingRequest, priority: int) -> ModelRewrite | Refusal | None:
        """What is changed of a request that is let in, as far as it can be told before its prompt is known."""
        refusal = self._turned_away(priority)
        if refusal is not None:
            return refusal
        target = model_rewrite(request.headers)
        rules = self._rules if request.has_body and self._rules and self._rules.has_rules else None
        if (target or rules) and request.overload is not None:
            return NOT_REWRITTEN
        if rules and not target:
            target = target_by_rules(request.body, rules)
        if self._endpoint_labels is not None and request.overload is not None:
            return NOT_TOLD
        return rewritten(request.body, target) if target and request.body else None

    def _decided(
        self, request: RoutingRequest, origin: Origin, prompt: Prompt | None, rewrite: ModelRewrite | None
    ) -> RoutingResult:
        prefix = self.prefix(prompt)
        view = _view(prompt.model if prompt else "", prefix, request.headers)
        draws = self._observers.draws(self._rng) if self._observers is not None else None
        decision = self._decide(
            view,
            prefix,
            prompt=prompt,
            subset=request.subset,
            overload=request.overload,
            origin=origin,
            rng=draws,
        )
        if decision is None:
            return NO_CANDIDATES
        if decision.picked and only_if_cached(request.headers) and not _usable_tokens(decision):
            return NOT_CACHED
        self.decisions.add(decision, request_id=origin.request_id, at=time.time())
        return self._routed(view, prefix, decision, rewrite, draws) if decision.picked else NONE_LEFT

    def _origin(self, request: RoutingRequest) -> Origin:
        headers = request.headers
        name = objective(headers)
        return Origin(
            request_id=request.request_id[:MAX_ID_CHARS],
            traceparent=traceparent(headers),
            objective=name,
            priority=self._policy.admission.priority(name),
            fairness_id=fairness_id(headers),
        )

    def _turned_away(self, priority: int) -> Refusal | None:
        if priority >= 0:
            return None
        now = time.monotonic()
        loads = [self.fleet.load(each.name, now=now) for each in self.fleet if each.addresses.serving]
        return self._policy.admission.refusal(priority, loads, now=now) if loads else NO_CANDIDATES

    def _decide(
        self,
        view: RequestView,
        prefix: Prefix | None,
        *,
        prompt: Prompt | None,
        subset: frozenset[str] | None,
        overload: Overload | None = None,
        origin: Origin | None = None,
        rng: Rng | None = None,
    ) -> Decision | None:
        labels = self._endpoint_labels(view.model) if self._endpoint_labels is not None else None
        candidates = self.fleet.candidates(prefix, now=view.now, subset=subset, labels=labels)
        if not candidates:
            return None
        policy = self._policy
        return msgspec.structs.replace(
            policy.profile.decide(view, candidates, rng=rng if rng is not None else self._rng),
            no_prefix_reason=prompt.reason if prompt is not None else overload,
            cut_reason=prompt.cut if prompt is not None else None,
            n_prompts=prompt.n_prompts if prompt is not None else 1,
            config_generation=policy.generation,
            origin=origin,
        )

    def _routed(
        self,
        view: RequestView,
        prefix: Prefix | None,
        decision: Decision,
        rewrite: ModelRewrite | None,
        draws: Draws | None,
    ) -> Route:
        """The route of a decision, told to all who learn from it. Nothing waits here, so that no booking is lost."""
        best, profile = decision.best, self._policy.profile
        prediction = self.fleet.routed(best, prefix, now=view.now)
        self._count_faults(profile.picked(view, decision))
        headers, faults = profile.response_headers(decision)
        self._count_faults(faults)
        return Route(
            self._addresses(decision),
            decision,
            headers,
            self.fleet.in_flight.book(best.name, tokens=best.uncached_tokens(view), now=view.now),
            rewrite,
            prediction,
            self._observers.routed(view, decision, prefix, draws) if self._observers is not None else None,
        )

    def _addresses(self, decision: Decision) -> tuple[str, ...]:
        """Where the gateway may send the request: the picked endpoints, then the next best as fallbacks."""
        if len(decision.picked) == 1:
            picked: tuple[str, ...] = (decision.best.address,)
        else:
            addresses = {candidate.name: candidate.address for candidate in decision.candidates}
            picked = tuple(addresses[name] for name in decision.picked)
        if not self._n_fallbacks:
            return picked
        # Draws break ties, so that the load of an endpoint that fails does not all go to one other.
        others = (
            (total, self._rng(), candidate.address)
            for candidate, total in zip(decision.kept, decision.totals, strict=True)
            if candidate.name not in decision.picked
        )
        return picked + tuple(address for _, _, address in heapq.nlargest(self._n_fallbacks, others))

    def _account(self, decision: Decision) -> None:
        picked = decision.picked[0]
        self._metrics.picked(picked)
        self._count_faults(decision.faults)
        if decision.no_prefix_reason is not None:
            self._metrics.no_prefix(decision.no_prefix_reason)
            return  # how many tokens it has is a guess, if that
        if decision.cut_reason is not None:
            self._metrics.prefix_cut(decision.cut_reason)
        self._metrics.prompt_known(tokens=decision.n_tokens, usable=_usable_tokens(decision))

    def _count_faults(self, faults: Iterable[PluginFault]) -> None:
        for fault in faults:
            self._metrics.plugin_fault(fault.name, fault.reason)
            if (fault.name, fault.reason) not in self._faults_said:
                self._faults_said.add((fault.name, fault.reason))
                # not its text, which another package wrote and which may quote the request
                log.warning(
                    "plugin %s: its answer had to be repaired (%s); POST /v1/score tells more, "
                    "further ones are counted in kvatlas_plugin_faults_total",
                    fault.name, fault.reason,
                )  # fmt: skip


def _usable_tokens(decision: Decision) -> int:
    """Prompt tokens cached on the first of the picked."""
    prefix = decision.best.prefix
    return prefix.usable_tokens if prefix is not None else 0


def _view(model: str, prefix: Prefix | None, headers: Mapping[str, str] | None = None) -> RequestView:
    n_tokens = prefix.n_tokens if prefix is not None else 0
    return RequestView(model=model, now=time.monotonic(), n_tokens=n_tokens, headers=headers or {})
