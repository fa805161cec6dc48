"""New and closed places call `on_change`."""

from __future__ import annotations

from kvatlas.indexer.holders import FASTEST, Place, RankHolders, SharedHolders
from kvatlas.indexer.keys import BlockKey
from kvatlas.indexer.reference import ReferenceIndex
from kvatlas.indexer.tiers import TierSpec, TierTable

PLACE = Place(FASTEST, 0)
OTHER = Place(FASTEST, 1)


def test_on_change_is_called_when_a_place_is_opened_or_closed() -> None:
    index, tiers = ReferenceIndex(), TierTable([TierSpec("gpu", ("GPU",))])
    layouts: list[tuple[int, ...]] = []
    holders = RankHolders(
        index=index,
        block_size=4,
        tiers=tiers,
        shared=SharedHolders(tiers, lambda _: index),
        capacities={},
        on_change=lambda: layouts.append(holders.layout({}, (1,)).tiers),
    )
    for place in (PLACE, PLACE, OTHER):
        holders.store(place, [BlockKey(1)])
    for place in (PLACE, PLACE):
        holders.close_place(place)
    holders.close()
    assert layouts == [(0b01,), (0b11,), (0b10,), (0,)]
