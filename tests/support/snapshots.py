"""Snapshots written and read in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from kvatlas.events.position import StreamPosition
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.errors import UnknownEndpointError
from kvatlas.indexer.snapshot import (
    SavedEndpoint,
    SavedFleet,
    SavedHead,
    SavedRank,
    Snapshot,
    SnapshotEncoder,
    read_snapshot,
    saved_tiers,
)

MAX_AGE_S = 900.0


def make_head(atlas: Atlas, *, created: float = 1000.0, models: Iterable[str] = ("m",)) -> SavedHead:
    return SavedHead(
        kvatlas="0",
        created=created,
        models=frozenset(models),
        seed=atlas.seed,
        tiers=saved_tiers(atlas.tiers),
    )


def encoded(head: SavedHead, endpoints: Iterable[SavedEndpoint], fleet: SavedFleet) -> bytes:
    encoder = SnapshotEncoder()
    pieces = [encoder.start(head), *map(encoder.endpoint, endpoints), encoder.end(fleet)]
    return b"".join(pieces)


def saved_endpoint(
    atlas: Atlas,
    name: str,
    *,
    n_ranks: int = 1,
    now: float = 0.0,
    positions: Mapping[int, StreamPosition] | None = None,
) -> SavedEndpoint:
    ranks = tuple(
        SavedRank(rank=rank, position=(positions or {}).get(rank), books=atlas.dump(name, rank, now=now))
        for rank in range(n_ranks)
    )
    return SavedEndpoint(name=name, addresses=name, uid="", started=None, ranks=ranks)


def saved(
    atlas: Atlas,
    endpoints: Mapping[str, int],
    *,
    now: float = 0.0,
    position: StreamPosition | None = None,
) -> bytes:
    """Return the snapshot file of an atlas with endpoints (name -> ranks)."""
    positions = {} if position is None else {0: position}
    rows = [
        saved_endpoint(atlas, name, n_ranks=n_ranks, now=now, positions=positions)
        for name, n_ranks in endpoints.items()
    ]
    fleet = SavedFleet(media=atlas.tiers.unknown_media, shared={"": atlas.dump_shared("")})
    return encoded(make_head(atlas), rows, fleet)


def load(data: bytes, atlas: Atlas, *, now: float = 0.0) -> Snapshot:
    """Load the file's state into a fresh atlas."""
    snapshot = read_snapshot(data, make_head(atlas), max_age_s=MAX_AGE_S)
    for medium in snapshot.fleet.media:
        atlas.tiers.of(medium)
    for space, shared in snapshot.fleet.shared.items():
        atlas.load_shared(space, shared)
    for endpoint in snapshot.endpoints.values():
        for each in endpoint.ranks:
            with suppress(UnknownEndpointError):
                atlas.load(endpoint.name, each.rank, each.books, now=now)
    return snapshot
