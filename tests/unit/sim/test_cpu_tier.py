from __future__ import annotations

from kvatlas.events.model import EngineHash
from kvatlas.sim.cpu_tier import Chunk, CpuTier


def make_chunk(key: int, *, ready: bool = True, pins: int = 0) -> Chunk:
    return Chunk((EngineHash(key),), None, (0,), ready=ready, pins=pins)


def fill(tier: CpuTier, *keys: int) -> None:
    assert tier.add([make_chunk(key) for key in keys], keep=()) == []


def keys_of(chunks: list[Chunk]) -> list[int]:
    return [chunk.key for chunk in chunks]


def test_least_recently_used_is_evicted_when_full() -> None:
    tier = CpuTier(3)
    fill(tier, 1, 2, 3)
    tier.touch([EngineHash(1)])

    evicted = tier.add([make_chunk(4), make_chunk(5)], keep=())

    assert evicted is not None
    assert keys_of(evicted) == [2, 3]
    assert keys_of(tier.chunks()) == [1, 4, 5]


def test_looking_up_does_not_renew() -> None:
    tier = CpuTier(2)
    fill(tier, 1, 2)

    assert tier.get(EngineHash(1)) is not None
    assert tier.add([make_chunk(3)], keep=()) is not None
    assert keys_of(tier.chunks()) == [2, 3]


def test_chunks_in_use_are_not_evicted() -> None:
    tier = CpuTier(4)
    tier.add([make_chunk(1, ready=False), make_chunk(2, pins=1), make_chunk(3), make_chunk(4)], keep=())

    evicted = tier.add([make_chunk(5)], keep={EngineHash(3)})

    assert evicted is not None
    assert keys_of(evicted) == [4]


def test_nothing_changes_when_there_is_no_room() -> None:
    tier = CpuTier(2)
    fill(tier, 1, 2)

    assert tier.add([make_chunk(3), make_chunk(4)], keep={EngineHash(2)}) is None
    assert keys_of(tier.chunks()) == [1, 2]
