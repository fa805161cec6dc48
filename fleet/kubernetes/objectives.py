"""Request priorities from InferenceObjectives."""

from __future__ import annotations

from collections.abc import Sequence

from .client.wire import Wire
from .kinds import PoolMeta
from .pool_objects import PoolReference


class ObjectiveSpec(Wire, frozen=True):
    """Spec of an InferenceObjective."""

    pool_ref: PoolReference
    """Its pool."""
    priority: int | None = None
    """Priority of requests that name the objective; absent: 0."""


class InferenceObjective(Wire, frozen=True):
    """An objective, which requests name in `x-llm-d-inference-objective`."""

    metadata: PoolMeta
    """Name."""
    spec: ObjectiveSpec
    """Pool and priority."""


def priorities(objectives: Sequence[InferenceObjective]) -> dict[str, int]:
    """Map each objective's name to its priority."""
    return {found.metadata.name: found.spec.priority or 0 for found in objectives}
