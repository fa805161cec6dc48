"""Model rewrites from InferenceModelRewrites.

Precedence: a rule that names the model before a rule for all models, then the older object, then the earlier rule in an
object. Objects of the same second are ordered by name. Source: llm-d-router, InferenceModelRewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from .client.wire import Wire
from .kinds import PoolMeta
from .pool_references import PoolIdentity, PoolReference


class RewriteMeta(PoolMeta, frozen=True):
    """Metadata of a rewrite."""

    creation_timestamp: str = ""
    """Creation time in UTC, to the second."""


class ModelMatch(Wire, frozen=True):
    """A match by model name, the only kind that the API has."""

    value: str
    """The name."""


class RuleMatch(Wire, frozen=True):
    """Condition of a rule."""

    model: ModelMatch
    """Its model."""


class RuleTarget(Wire, frozen=True):
    """A model to rewrite to."""

    model_rewrite: str
    """Its name."""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Its share of requests, relative to the other targets."""


class RewriteRule(Wire, frozen=True):
    """One rewrite rule."""

    matches: tuple[RuleMatch, ...] = ()
    """One of them must match; empty matches every request."""
    targets: tuple[RuleTarget, ...] = ()
    """One of them is drawn by weight; empty keeps the model."""


class RewriteSpec(Wire, frozen=True):
    """Spec of an InferenceModelRewrite."""

    pool_ref: PoolReference
    """Its pool."""
    rules: tuple[RewriteRule, ...] = ()
    """Its rules, in order."""

    def belongs_to(self, pool: PoolIdentity) -> bool:
        """Return whether it names the pool."""
        return self.pool_ref.names(pool)


class InferenceModelRewrite(Wire, frozen=True):
    """An InferenceModelRewrite."""

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
        """Whether any model may be rewritten."""
        return bool(self._exact) or self._generic is not None

    def use(self, rewrites: Sequence[InferenceModelRewrite]) -> None:
        """Replace all rules by those of `rewrites`."""
        self._exact.clear()
        self._generic = None
        for rule in _in_order(rewrites):
            for match in rule.matches:
                self._exact.setdefault(match.model.value, rule)
            if not rule.matches and self._generic is None:
                self._generic = rule

    def target(self, model: str) -> str:
        """Return the model to use instead of `model`, drawn by weight; empty to keep it."""
        rule = self._exact.get(model, self._generic)
        if rule is None or not rule.targets:
            return ""
        place = self._rng() * sum(target.weight for target in rule.targets)
        for target in rule.targets:
            place -= target.weight
            if place < 0:
                return target.model_rewrite
        return rule.targets[-1].model_rewrite  # rounding may leave `place` at 0 after the last target


def _in_order(rewrites: Sequence[InferenceModelRewrite]) -> Iterator[RewriteRule]:
    for found in sorted(rewrites, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)):
        yield from found.spec.rules
