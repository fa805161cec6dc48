"""The columns of the tables: our two index cores, and two of Dynamo's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from .fleet import Blocks


class Column(StrEnum):
    """One column of the tables."""

    REFERENCE = "reference"
    NATIVE = "native"
    RADIX_TREE = "RadixTree"
    SERVICE = "SelectionService"


INDEXES = (Column.REFERENCE, Column.NATIVE, Column.RADIX_TREE)
"""Columns with an index to store into."""

SYSTEMS = (Column.REFERENCE, Column.NATIVE, Column.SERVICE)
"""Columns with a whole system, from the sockets of publishers on."""

Answer = dict[int, tuple[int, int]]
"""Gap-free blocks of a prompt on GPU, and on GPU then CPU, by endpoint that holds any."""


class Matcher(Protocol):
    """A measured index or system, which finds how much of a prompt each endpoint holds."""

    async def timed_match(self, prompt: Blocks) -> tuple[float, Answer]:
        """Return the seconds of one match for the whole fleet, and its answer.

        The time ends with the answer in Python objects; arguments are made before and the `Answer` after it.
        """
        ...


def compare(answers: Mapping[str, Answer], what: str) -> None:
    """End the run if answers differ.

    Raises:
        SystemExit: naming the first difference.
    """
    first, *others = answers
    for other in others:
        endpoints = answers[first].keys() | answers[other].keys()
        wrong = sorted(e for e in endpoints if answers[first].get(e) != answers[other].get(e))
        if wrong:
            one, two = (answers[name].get(wrong[0]) for name in (first, other))
            raise SystemExit(
                f"{what}: {first} and {other} differ on {len(wrong)} endpoints;"
                f" on endpoint {wrong[0]} they find {one} and {two} (GPU, GPU then CPU) blocks"
            )
