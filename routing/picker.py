"""The endpoint picker: a request in, the endpoint to send it to out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from ..fleet.fleet import Fleet
from ..fleet.replicas.knowledge import Knowledge
from ..indexer.prefix import Prefix
from ..scorers.core.base import Rng
from ..scorers.core.decision import Decision, Origin
from ..scorers.core.model import BurstPlace
from ..scorers.core.shadow import Repeat
from ..tokenization.eventual import Eventual, Known, Later
from ..tokenization.model import NO_STATE, ParsedRequest, Prompt
from ..tokenization.reading import Reader
from .bodies import BodyReader, ReadRequest
from .bursts import Bursts
from .control_headers import asks_for_models, only_if_cached
from .decider import Decider, EndpointLabels, usable_tokens
from .dispatcher import Dispatcher
from .model_rewrite import ModelRules
from .origin import origin_of
from .policy import Policy
from .prefixes import covering_keys, prefix_of_prompt
from .records import Records
from .refusals import NO_CANDIDATES, NO_MODEL_LIST, NOT_CACHED, unpicked
from .request_draws import RequestDraws
from .request_views import completed_view, request_view
from .router import LocalResponse, Refusal, Router, RoutingRequest, RoutingResult
from .stored_responses import StoredResponses, wanted_response


class Tokenizes(Protocol):
    """Turns requests into prompts."""

    def tokenize(self, request: ParsedRequest) -> Eventual[Prompt]:
        """See `PromptPipeline.tokenize`."""
        ...


class ModelCatalog(Protocol):
    """The models that endpoints list."""

    def merged(self) -> bytes | None:
        """Return the models of all endpoints as JSON, None if no endpoint has shown its list."""
        ...

    def addresses_of(self, model: str) -> frozenset[str] | None:
        """Return the addresses that may serve a model, None if all may."""
        ...


@dataclass(frozen=True, slots=True)
class PickerOptions:
    """Settings of routing, beside the policy.

    Attributes:
        n_fallbacks: endpoints named after the picked ones.
        rules: models that replace others if no header says so; None if there are none.
        endpoint_labels: labels that an endpoint must have, by model name; None if every endpoint serves every model.
        models: the models that endpoints list; None if nobody collects the lists.
        knowledge: what is shared with other replicas; None if there are none. With it ties are broken by the request's id.
    """

    n_fallbacks: int = 0
    rules: ModelRules | None = None
    endpoint_labels: EndpointLabels | None = None
    models: ModelCatalog | None = None
    knowledge: Knowledge | None = None


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
        stored: the servers of stored responses.
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
        fleet.known_loads.max_age_s = self._max_load_age_s
        self._rng, self.reader = rng, reader or Reader()
        self._models, self._knowledge = options.models, options.knowledge
        self._bodies = BodyReader(
            self.reader, rules=options.rules, needs_model=options.endpoint_labels is not None
        )
        self._decider = Decider(fleet, rng, options.endpoint_labels)
        self._dispatcher = Dispatcher(fleet, records, rng, options.n_fallbacks)
        self._bursts = Bursts(fleet)
        self.stored = StoredResponses()
        if self._knowledge is not None:
            self._knowledge.keep("responses", self.stored.shared)
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Decide by another policy from the next decision on."""
        self.policy = policy
        if self._knowledge is not None:
            self._knowledge.use(policy.profile.shared)

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        """Return the endpoints for `request`, or why there are none. Never raises for bad input."""
        started = time.perf_counter()
        policy = self.policy
        if (
            policy.requests.answers_models
            and self._models is not None
            and asks_for_models(request.path, request.headers)
        ):
            body = self._models.merged()
            answer = LocalResponse(body) if body is not None else NO_MODEL_LIST
            return Known(self.records.counted(answer, started))
        origin = origin_of(request, policy)
        refusal = policy.admission.check(origin.priority, self.fleet)
        if refusal is not None:
            return Known(self.records.counted(refusal, started))
        read = self._bodies.read(request, policy.requests)
        result = read.then(partial(self._read, request, origin))
        return result.map(partial(self.records.counted, started=started))

    def decide(
        self,
        *,
        model: str,
        prefix: Prefix | None,
        prompt: Prompt | None = None,
        parsed: ParsedRequest | None = None,
    ) -> Decision | None:
        """Score the endpoints as for a request, without routing anything; None if there is no endpoint.

        Args:
            model: as the client named it.
            prefix: block keys of the prompt, None if it has none.
            prompt: the prompt of the keys, None if the keys were given directly.
            parsed: the request of the prompt, None likewise.
        """
        policy = self.policy
        view = completed_view(request_view(model, prefix, prompt=prompt), policy, parsed)
        decide = partial(self._decider.decide, policy, view, prefix, prompt=prompt)
        decision = self._decided(policy, model, None, decide)
        return decision.lasting() if decision is not None else None

    def _max_load_age_s(self) -> float:
        return min(self.policy.max_load_age_s, self.records.max_load_age_s)

    def _subset(self, policy: Policy, subset: frozenset[str] | None, model: str) -> frozenset[str] | None:
        """Return the addresses allowed by the gateway, of those that list the model if lists are collected."""
        if not policy.requests.answers_models or self._models is None:
            return subset
        addresses = self._models.addresses_of(model)
        if addresses is None or subset is None:
            return addresses if subset is None else subset
        return _common(subset, addresses) or subset

    def _decided(
        self,
        policy: Policy,
        model: str,
        subset: frozenset[str] | None,
        decide: Callable[..., Decision | None],
        response_id: str = "",
    ) -> Decision | None:
        """Decide among the endpoints that the gateway allows, if possible among those that list the model.

        Only the server that made a stored response has it, as long as it is there.
        """
        address = self.stored.address_of(response_id) if response_id else None
        if address is not None and (own := _common(subset, frozenset((address,)))):
            decision = decide(subset=own)
            if decision is not None:
                return decision
        listing = self._subset(policy, subset, model)
        decision = decide(subset=listing)
        if decision is None and listing is not subset:  # those that list the model are just gone
            decision = decide(subset=subset)
        return decision

    def _read(
        self, request: RoutingRequest, origin: Origin, read: ReadRequest | Refusal
    ) -> Eventual[RoutingResult]:
        if isinstance(read, Refusal):
            return Known(read)
        if read.parsed is None:
            return Known(self._routed(request, origin, read, read.unread))
        prompt = self.pipeline.tokenize(read.parsed)
        if self.policy.burst is not None:
            return prompt.then(partial(self._in_burst, request, origin, read))
        return prompt.map(partial(self._routed, request, origin, read))

    def _in_burst(
        self, request: RoutingRequest, origin: Origin, read: ReadRequest, prompt: Prompt
    ) -> Eventual[RoutingResult]:
        """Decide when the window of requests that arrive together has ended."""
        producer = self.policy.burst
        keys = covering_keys(prompt, self.fleet.atlas, producer.block_size) if producer is not None else None
        if producer is None or not keys:
            return Known(self._routed(request, origin, read, prompt))
        labels = self._decider.labels(prompt.model)
        place = self._bursts.place(producer, keys, subset=request.subset, labels=labels)
        return Later(place).map(partial(self._routed, request, origin, read, prompt))

    def _routed(
        self,
        request: RoutingRequest,
        origin: Origin,
        read: ReadRequest,
        prompt: Prompt | None,
        burst: BurstPlace | None = None,
    ) -> RoutingResult:
        """Decide and dispatch in one step, by one policy and the fleet as it is."""
        policy, records = self.policy, self.records
        prefix = prefix_of_prompt(prompt, self.fleet.atlas)
        view = request_view(
            _model_of(prompt),
            prefix,
            request.headers,
            prompt=prompt,
            priority=origin.priority,
            has_body=request.has_body,
        )
        view = completed_view(view, policy, read.parsed, burst)
        rng = self._rng if self._knowledge is None else RequestDraws(origin.request_id)
        draws = records.draws(rng)
        decide = partial(
            self._decider.decide,
            policy,
            view,
            prefix,
            prompt=prompt,
            overload=read.overload,
            origin=origin,
            rng=draws or rng,
        )
        state = read.parsed.state if read.parsed is not None else NO_STATE
        wanted = wanted_response(request.path, state)
        decision = self._decided(policy, view.model, request.subset, decide, wanted)
        if decision is None:
            return NO_CANDIDATES
        is_gated = request.has_body and only_if_cached(request.headers)
        if is_gated and decision.picked and not usable_tokens(decision):
            return NOT_CACHED
        repeat = Repeat(decision.candidates, draws) if draws is not None else None
        decision = decision.lasting()
        records.decided(decision, origin.request_id)
        if not decision.picked:
            return unpicked(decision, is_screened=policy.profile.is_screened(decision))
        route = self._dispatcher.dispatch(policy, view, prefix, decision, read.rewrite, repeat)
        return replace(route, is_background=True) if state.is_background else route


def _common(subset: frozenset[str] | None, addresses: frozenset[str]) -> frozenset[str]:
    """Return the addresses that a subset allows, which has `ip:port` or `ip` for every port; None allows all."""
    if subset is None:
        return addresses
    return frozenset(each for each in addresses if each in subset or each.rpartition(":")[0] in subset)


def _model_of(prompt: Prompt | None) -> str:
    return prompt.model if prompt is not None else ""
