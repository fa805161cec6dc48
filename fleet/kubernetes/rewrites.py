"""Models that InferenceModelRewrites put in the place of others.

A rule for the very model goes before one for all of them, an older object before a younger one, and a rule before those
behind it. Source: llm-d-router, InferenceModelRewrite; objects of the same second are ordered by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from .client.wire import Wire
from .kinds import PoolMeta
from .pool_objects import PoolReference


class RewriteMeta(PoolMeta, frozen=True):
    """Metadata of a rewrite."""

    creation_timestamp: str = ""
    """When it was made, in UTC to the second."""


class ModelMatch(Wire, frozen=True):
    """A model's name; the API has no other way to match."""

    value: str
    """The name."""


class RuleMatch(Wire, frozen=True):
    """What a request must have."""

    model: ModelMatch
    """Its model."""


class RuleTarget(Wire, frozen=True):
    """A model that may take the place."""

    model_rewrite: str
    """Its name."""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Its share."""


class RewriteRule(Wire, frozen=True):
    """Which models become which."""

    matches: tuple[RuleMatch, ...] = ()
    """One of them must fit; none: every request fits."""
    targets: tuple[RuleTarget, ...] = ()
    """One of them is drawn; none: the model stays."""


class RewriteSpec(Wire, frozen=True):
    """What a rewrite says."""

    pool_ref: PoolReference
    """Its pool."""
    rules: tuple[RewriteRule, ...] = ()
    """Its rules, in order."""


class InferenceModelRewrite(Wire, frozen=True):
    """Rules for models."""

    metadata: RewriteMeta
    """Name and age."""
    spec: RewriteSpec
    """Pool and rules."""


class ModelRewrites:
    """The rules in force.

    Args:
        rng: uniform in [0, 1); draws one of several targets.
    """

    def __init__(self, rng: Callable[[], float]) -> None:
        self._rng = rng
        self._exact: dict[str, RewriteRule] = {}
        self._generic: RewriteRule | None = None

    @property
    def has_rules(self) -> bool:
        """Whether any model may become another."""
        return bool(self._exact) or self._generic is not None

    def use(self, rewrites: Sequence[InferenceModelRewrite]) -> None:
        """Put these rules in force, and no others."""
        self._exact.clear()
        self._generic = None
        for rule in _in_order(rewrites):
            for match in rule.matches:
                self._exact.setdefault(match.model.value, rule)
            if not rule.matches and self._generic is None:
                self._generic = rule

    def target(self, model: str) -> str:
        """The model that takes the place of `model`, drawn by weight; empty when it stays."""
        rule = self._exact.get(model, self._generic)
        if rule is None or not rule.targets:
            return ""
        place = self._rng() * sum(target.weight for target in rule.targets)
        for target in rule.targets:
            place -= target.weight
            if place < 0:
                return target.model_rewrite
        return rule.targets[-1].model_rewrite  # a sum of floats may fall short of the whole


def _in_order(rewrites: Sequence[InferenceModelRewrite]) -> Iterator[RewriteRule]:
    for found in sorted(rewrites, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)):
        yield from found.spec.rules
