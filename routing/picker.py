"""The endpoint picker: a request in, the endpoint to send it to out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..fleet.fleet import Fleet
from ..indexer.prefix import Prefix
from ..scorers.core.base import Rng
from ..scorers.core.decision import Decision, Origin
from ..scorers.core.shadow import Repeat
from ..tokenization.eventual import Eventual, Known
from ..tokenization.model import ParsedRequest, Prompt
from ..tokenization.reading import Reader
from .bodies import BodyReader, ReadRequest
from .control_headers import only_if_cached
from .decider import Decider, EndpointLabels, request_view, usable_tokens
from .dispatcher import Dispatcher
from .model_rewrite import ModelRules
from .origin import origin_of
from .policy import Policy
from .prefixes import prefix_of_prompt
from .records import Records
from .refusals import NO_CANDIDATES, NONE_LEFT, NOT_CACHED
from .router import Refusal, Router, RoutingRequest, RoutingResult


class Tokenizes(Protocol):
    """Turns requests into prompts."""

    def tokenize(self, request: ParsedRequest) -> Eventual[Prompt]:
        """See `PromptPipeline.tokenize`."""
        ...


@dataclass(frozen=True, slots=True)
class PickerOptions:
    """Settings of routing, beside the policy.

    Attributes:
        n_fallbacks: endpoints named after the picked ones.
        rules: models that replace others if no header says so; None if there are none.
        endpoint_labels: labels that an endpoint must have, by model name; None if every endpoint serves every model.
    """

    n_fallbacks: int = 0
    rules: ModelRules | None = None
    endpoint_labels: EndpointLabels | None = None


class Picker(Router):
    """Admits, tokenizes, decides and dispatches; each job is in a module of its own.

    Args:
        pipeline: request bodies to token ids.
        fleet: endpoints.
        policy: what decides, until `use`.
        records: counters, kept decisions and observers.
        rng: uniform draws for ties.
        options: settings of routing, beside the policy.
        reader: reads long requests; None makes one with the defaults.

    Attributes:
        reader: as above.
    """

    def __init__(
        self,
        *,
        pipeline: Tokenizes,
        fleet: Fleet,
        policy: Policy,
        records: Records,
        rng: Rng,
        options: PickerOptions | None = None,
        reader: Reader | None = None,
    ) -> None:
        options = options or PickerOptions()
        self.pipeline, self.fleet, self.policy, self.records = pipeline, fleet, policy, records
        fleet.forgotten.append(records.metrics.forget)
        self._rng, self.reader = rng, reader or Reader()
        self._bodies = BodyReader(
            self.reader, rules=options.rules, needs_model=options.endpoint_labels is not None
        )
        self._decider = Decider(fleet, rng, options.endpoint_labels)
        self._dispatcher = Dispatcher(fleet, records, rng, options.n_fallbacks)

    def use(self, policy: Policy) -> None:
        """Decide by another policy from the next decision on."""
        self.policy = policy

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        """Return the endpoints for `request`, or why there are none. Never raises for bad input."""
        started = time.perf_counter()
        origin = origin_of(request, self.policy.admission)
        refusal = self.policy.admission.check(origin.priority, self.fleet)
        if refusal is not None:
            return Known(self.records.counted(refusal, started))
        read = self._bodies.read(request)
        result = read.then(partial(self._read, request, origin))
        return result.map(partial(self.records.counted, started=started))

    def decide(self, *, model: str, prefix: Prefix | None, prompt: Prompt | None = None) -> Decision | None:
        """Score all endpoints without routing anything; None if there is no endpoint.

        Args:
            model: as the client named it.
            prefix: block keys of the prompt, None if it has none.
            prompt: the prompt of the keys, None if the keys were given directly.
        """
        decision = self._decider.decide(self.policy, request_view(model, prefix), prefix, prompt=prompt)
        return decision.lasting() if decision is not None else None

    def _read(
        self, request: RoutingRequest, origin: Origin, read: ReadRequest | Refusal
    ) -> Eventual[RoutingResult]:
        if isinstance(read, Refusal):
            return Known(read)
        if read.parsed is None:
            return Known(self._routed(request, origin, read, read.unread))
        return self.pipeline.tokenize(read.parsed).map(partial(self._routed, request, origin, read))

    def _routed(
        self, request: RoutingRequest, origin: Origin, read: ReadRequest, prompt: Prompt | None
    ) -> RoutingResult:
        """Decide and dispatch in one step, by one policy and the fleet as it is."""
        policy, records = self.policy, self.records
        prefix = prefix_of_prompt(prompt, self.fleet.atlas)
        view = request_view(_model_of(prompt), prefix, request.headers)
        draws = records.draws(self._rng)
        decision = self._decider.decide(
            policy,
            view,
            prefix,
            prompt=prompt,
            subset=request.subset,
            overload=read.overload,
            origin=origin,
            rng=draws,
        )
        if decision is None:
            return NO_CANDIDATES
        if decision.picked and only_if_cached(request.headers) and not usable_tokens(decision):
            return NOT_CACHED
        repeat = Repeat(decision.candidates, draws) if draws is not None else None
        decision = decision.lasting()
        records.decided(decision, origin.request_id)
        if not decision.picked:
            return NONE_LEFT
        return self._dispatcher.dispatch(policy.profile, view, prefix, decision, read.rewrite, repeat)


def _model_of(prompt: Prompt | None) -> str:
    return prompt.model if prompt is not None else ""
