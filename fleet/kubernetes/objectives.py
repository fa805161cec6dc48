"""Priorities that InferenceObjectives give to requests."""

from __future__ import annotations

from collections.abc import Sequence

from .client.wire import Wire
from .kinds import PoolMeta
from .pool_objects import PoolReference


class ObjectiveSpec(Wire, frozen=True):
    """What an objective says."""

    pool_ref: PoolReference
    """Its pool."""
    priority: int | None = None
    """Priority of requests that name the objective; absent: 0."""


class InferenceObjective(Wire, frozen=True):
    """An objective, named by requests in `x-llm-d-inference-objective`."""

    metadata: PoolMeta
    """Name."""
    spec: ObjectiveSpec
    """Pool and priority."""


def priorities(objectives: Sequence[InferenceObjective]) -> dict[str, int]:
    """Objective -> priority."""
    return {found.metadata.name: found.spec.priority or 0 for found in objectives}
