"""Places of endpoints in a data centre: host, rack, zone and region, from labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import Literal

import numpy as np

from .candidates import Candidates
from .columns import IntArray

Level = Literal["host", "rack", "zone", "region"]

LEVELS: tuple[Level, ...] = ("host", "rack", "zone", "region")
"""Levels from the closest to the widest."""

LABELS = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
"""Label of each level that Kubernetes and the reference use."""

TOPOLOGY_EXTRACTOR = "topology-extractor"
"""Type of the plugin that names other labels, and its default name."""

APART = len(LEVELS)
"""Level of endpoints that share none."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Labels that name the place of an endpoint.

    Attributes:
        labels: name of the label of each level, in the order of `LEVELS`.
    """

    labels: tuple[str, str, str, str] = LABELS

    def levels(self, peer: Mapping[str, str], candidates: Candidates) -> IntArray | None:
        """Return the closest level that each candidate shares with the peer, as position in `LEVELS`, or `APART`.

        A level counts if both have its label, with the same value that is not empty; wider levels are not compared.

        Args:
            peer: labels of the other endpoint.
            candidates: endpoints to compare with it.
        Returns:
            None if the peer has none of the labels.
        Cost: four operations on columns.
        """
        if not any(peer.get(label) for label in self.labels):
            return None
        levels = np.full(len(candidates), APART, np.int32)
        for level in reversed(range(APART)):
            if place := peer.get(self.labels[level]):
                levels[candidates.labelled(self.labels[level]).where(partial(eq, place))] = level
        return levels
