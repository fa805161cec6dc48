"""Request priorities from InferenceObjectives."""

from __future__ import annotations

from collections.abc import Sequence

from .client.wire import Wire
from .kinds import PoolMeta
from .pool_references import LabelSelector, PoolIdentity, PoolReference


class ObjectiveSpec(Wire, frozen=True):
    """Spec of an InferenceObjective."""

    pool_ref: PoolReference | None = None
    """Its pool; None if it names none."""
    pool_refs: tuple[PoolReference, ...] = ()
    """Its pools."""
    pool_selector: LabelSelector | None = None
    """Labels of its pools; None if it selects none."""
    priority: int | None = None
    """Priority of requests that name the objective; absent: 0."""

    def belongs_to(self, pool: PoolIdentity) -> bool:
        """Return whether any of the three names the pool."""
        references = self.pool_refs if self.pool_ref is None else (self.pool_ref, *self.pool_refs)
        by_label = self.pool_selector is not None and self.pool_selector.selects(pool.labels)
        return by_label or any(each.names(pool) for each in references)


class InferenceObjective(Wire, frozen=True):
    """An objective, which requests name in `x-llm-d-inference-objective`."""

    metadata: PoolMeta
    """Name."""
    spec: ObjectiveSpec
    """Pool and priority."""


def priorities(objectives: Sequence[InferenceObjective]) -> dict[str, int]:
    """Map each objective's name to its priority."""
    return {found.metadata.name: found.spec.priority or 0 for found in objectives}
