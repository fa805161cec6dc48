"""One snapshot of two: the own file, and what a sibling knows now."""

from __future__ import annotations

from ..indexer.snapshot import SavedEndpoint, SavedFleet, Snapshot


def newest_of(own: Snapshot, given: Snapshot) -> Snapshot:
    """Return the sibling's snapshot, with the endpoints of the own file that are further in their streams or missing there.

    Positions in the engines' streams decide, since the clocks of two machines cannot be compared: time stamps of one stream
    are of one clock, the engine's. An endpoint without a stream is as the sibling has it, which follows it now. Where the
    two number tiers of unconfigured media differently, they cannot be mixed, and the sibling's is returned.
    """
    if own.fleet.media != given.fleet.media:
        return given
    further = {
        name: saved
        for name, saved in own.endpoints.items()
        if (other := given.endpoints.get(name)) is None or _is_further(saved, other)
    }
    shared = {**own.fleet.shared, **given.fleet.shared}
    return Snapshot(
        given.head, {**given.endpoints, **further}, SavedFleet(media=given.fleet.media, shared=shared)
    )


def _is_further(one: SavedEndpoint, other: SavedEndpoint) -> bool:
    """Return whether no rank of `one` is behind that of `other`, and some rank is further, in the same pod."""
    if (one.uid, one.addresses) != (other.uid, other.addresses):
        return False
    ones, others = _positions(one), _positions(other)
    if ones.keys() != others.keys():
        return False
    return ones != others and all(ones[rank] >= others[rank] for rank in ones)


def _positions(endpoint: SavedEndpoint) -> dict[int, tuple[float, int]]:
    """Return rank -> its newest time stamp and the number after its last batch; ranks without a stream are absent."""
    return {
        rank.rank: (rank.position.newest_stamp, rank.position.next_seq or 0)
        for rank in endpoint.ranks
        if rank.position is not None
    }
