"""One decision: the candidates of a request, scored by a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from ..fleet.fleet import Fleet
from ..indexer.prefix import Prefix
from ..scorers.core.base import Rng
from ..scorers.core.decision import Decision, Origin, Placement
from ..scorers.core.model import RequestView
from ..tokenization.model import Prompt
from .policy import Policy
from .router import Overload

EndpointLabels = Callable[[str], Mapping[str, str]]
"""Model name -> labels that an endpoint must have to serve it."""

_OF_THE_REQUEST = ("no_prefix_reason", "cut_reason", "n_prompts", "n_choices", "config_generation", "origin")

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Decider:
    """Scores the fleet as it is. A decision is made in one step, without a pause.

    Args:
        fleet: endpoints.
        rng: uniform draws for ties.
        endpoint_labels: see `EndpointLabels`; None if every endpoint serves every model.
    """

    def __init__(self, fleet: Fleet, rng: Rng, endpoint_labels: EndpointLabels | None) -> None:
        self._fleet, self._rng, self._endpoint_labels = fleet, rng, endpoint_labels

    def labels(self, model: str) -> Mapping[str, str]:
        """Return the labels that an endpoint must have to serve a model; empty if every endpoint serves it."""
        return self._endpoint_labels(model) if self._endpoint_labels is not None else _NO_LABELS

    def decide(
        self,
        policy: Policy,
        view: RequestView,
        prefix: Prefix | None,
        *,
        prompt: Prompt | None,
        subset: frozenset[str] | None = None,
        overload: Overload | None = None,
        origin: Origin | None = None,
        rng: Rng | None = None,
    ) -> Decision | None:
        """Score all endpoints; None if there is no endpoint.

        Args:
            policy: filters, scorers and picker.
            view: the request as scorers see it.
            prefix: block keys of the prompt, None if it has none.
            prompt: the prompt itself, None if it is not known.
            subset: addresses allowed; None allows all.
            overload: why the prompt was not read, None if there was no need.
            origin: whose request it is, None for a decision that routes nothing.
            rng: draws in place of the decider's own.
        """
        candidates = self._fleet.candidates(
            prefix, now=view.now, subset=subset, labels=self.labels(view.model)
        )
        if not len(candidates):
            return None
        decision = msgspec.structs.replace(
            policy.profile.decide(view, candidates, rng=rng if rng is not None else self._rng),
            no_prefix_reason=overload if overload is not None or prompt is None else prompt.reason,
            cut_reason=prompt.cut if prompt is not None else None,
            n_prompts=prompt.n_prompts if prompt is not None else 1,
            n_choices=prompt.n_choices if prompt is not None else 1,
            config_generation=policy.generation,
            origin=origin,
        )
        placement = decision.placement
        if placement is None or not placement.stages:
            return decision
        return msgspec.structs.replace(decision, placement=_with_same_request(placement, decision))


def _with_same_request(placement: Placement, decision: Decision) -> Placement:
    """Return the placement with what a decision says of the request in the decisions of its stages too."""
    same = {name: getattr(decision, name) for name in _OF_THE_REQUEST}
    stages = tuple(
        msgspec.structs.replace(each, decision=msgspec.structs.replace(each.decision, **same))
        for each in placement.stages
    )
    return msgspec.structs.replace(placement, stages=stages)


def usable_tokens(decision: Decision) -> int:
    """Return the prompt tokens cached on the first picked endpoint."""
    prefix = decision.best.prefix
    return prefix.usable_tokens if prefix is not None else 0
