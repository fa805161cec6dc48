"""Answers of the standard contract: what each instance holds of a prompt, written from the columns of its match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import msgspec

from ...fleet.endpoint import Endpoint
from ...fleet.instance import DEFAULT_TENANT
from ...indexer.match_columns import BLOCK_SIZE, RANK, USABLE, MatchColumns

N_SHOWN = 3
"""Tiers that the contract has a field for."""

Numbers: TypeAlias = Sequence[int]
"""Usable blocks, best rank and tokens per block; then gap-free blocks of the shown tiers, fastest first."""

_encode = msgspec.json.Encoder().encode


class AskedInstance(NamedTuple):
    """An instance that a query is about.

    Attributes:
        row: of its endpoint in the columns.
        endpoint: its endpoint.
    """

    row: int
    endpoint: Endpoint


class _Match(msgspec.Struct, frozen=True, gc=False):
    """An `InstanceMatch` that is written and not checked."""

    longest_matched: int
    GPU: int
    CPU: int
    DISK: int
    DP: dict[str, int]


class InstanceMatches:
    """What each endpoint holds of a prompt.

    Args:
        columns: the matches; None if no block size is known.
    """

    def __init__(self, columns: MatchColumns | None) -> None:
        self._numbers: list[Numbers] = []
        self._others: dict[int, Mapping[int, int]] = {}
        if columns is not None:
            n_tiers = len(columns.tiers)
            beside = [2 * n_tiers + line for line in (USABLE, RANK, BLOCK_SIZE)]
            self._numbers = columns.figures[[*beside, *range(n_tiers)[:N_SHOWN]]].T.tolist()
            self._others.update(columns.other_ranks)

    def take(self, row: int, other: InstanceMatches) -> None:
        """Replace what one endpoint holds by what `other` has of it; nothing changes if that is not known."""
        if other._numbers and other._numbers[row][2]:
            self._numbers[row] = other._numbers[row]
            self._others[row] = other._others.get(row, {})

    def answer(self, asked: Sequence[AskedInstance], tenant: str | None) -> bytes:
        """Return the answer about these instances in JSON.

        Args:
            asked: the instances.
            tenant: of which the caller asked, None for all.
        Cost: 1 us per instance that holds something, half of it for others.
        """
        answer: dict[str, dict[str, _Match | msgspec.Raw]] = {}
        if tenant in (None, DEFAULT_TENANT):
            answer[DEFAULT_TENANT] = {}
        numbers, others = self._numbers, self._others
        for row, endpoint in asked:
            ranks = tuple([rank.number for rank in endpoint.ranks])
            match = numbers[row] if numbers else ()
            other = others.get(row) if others else None
            found = _held(match, ranks, other or {}) if other or any(match[3:]) else _nothing(ranks)
            instance = endpoint.instance
            if instance.tenant not in answer:
                answer[instance.tenant] = {}
            answer[instance.tenant][instance.name] = found
        return _encode(answer)


def _held(match: Numbers, ranks: tuple[int, ...], others: Mapping[int, int]) -> _Match:
    blocks, best, size, *tiers = match
    longest = blocks * size
    usable = {**others, best: longest} if any(tiers) else others
    gpu, cpu, disk = [*[tier * size for tier in tiers], 0, 0][:N_SHOWN]
    return _Match(longest, gpu, cpu, disk, {str(rank): usable.get(rank, 0) for rank in ranks})


@lru_cache(maxsize=256)
def _nothing(ranks: tuple[int, ...]) -> msgspec.Raw:
    return msgspec.Raw(_encode(_Match(0, 0, 0, 0, {str(rank): 0 for rank in ranks})))
