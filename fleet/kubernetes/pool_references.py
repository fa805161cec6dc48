"""The ways in which an object says to which pools it belongs.

Source: llm-d-router, apix/v1alpha2: InferenceObjective has all three, InferenceModelRewrite the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...scorers.filters.label_selector import RequirementParams
from .client.wire import Wire

GROUP_WITHOUT_POOLS = "llm-d.ai"
"""Group that some CRDs fill in if an object names no group for its pool. It has no pools of its own."""


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """A pool as objects name it.

    Attributes:
        group: its API group.
        name: its name.
        labels: its labels; empty until it was read.
    """

    group: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class PoolReference(Wire, frozen=True):
    """Reference to a pool."""

    group: str = "inference.networking.k8s.io"
    """Its API group."""
    name: str = ""
    """Its name."""

    def names(self, pool: PoolIdentity) -> bool:
        """Return whether it refers to that pool."""
        return self.name == pool.name and self.group in (pool.group, GROUP_WITHOUT_POOLS)


class LabelSelector(Wire, frozen=True):
    """Selector by labels; an empty one selects everything."""

    match_labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Labels with their required values."""
    match_expressions: tuple[RequirementParams, ...] = ()
    """Further conditions."""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether it selects an object with these labels."""
        return self.match_labels.items() <= labels.items() and all(
            each.holds(labels.get(each.key)) for each in self.match_expressions
        )
