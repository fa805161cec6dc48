"""The index and the system behind each column."""

from __future__ import annotations

from .columns import Column
from .dynamo import RadixTrees, Service
from .indexes import MeasuredIndex, OurIndex
from .publisher import Load
from .systems import Kvatlas, System


def make_index(column: Column, n_endpoints: int) -> MeasuredIndex:
    """Return the empty index of one of `INDEXES`."""
    return RadixTrees() if column is Column.RADIX_TREE else OurIndex(column, n_endpoints)


def make_system(column: Column, load: Load) -> System:
    """Return the system of one of `SYSTEMS`, which follows no publisher yet."""
    return Service(load) if column is Column.SERVICE else Kvatlas(column, load)
