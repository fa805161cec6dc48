"""The snapshot file: everything learned, as bytes that are used only after all checks.

    file     = MAGIC, FORMAT as u32, frame of a SavedHead, frames of SavedEndpoint, frame of a SavedFleet, checksum
    frame    = length of its body as u64, body in msgpack
    column   = [typecode, bytes]: a machine array within a body
    checksum = XXH3-64 of all before it, as u64

Every number outside msgpack is little endian. Endpoints do not refer to each other.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from ..events.model import MediumName
from ..events.position import StreamPosition
from .columns import Saved
from .errors import SnapshotError
from .holders import SavedShared
from .saved import SavedLedger
from .tiers import MAX_UNKNOWN_TIERS, TierSource, TierTable

MAGIC = b"kvatlas\n"

FORMAT = 3
"""Version of the format; rises with every change of this layout, of a saved value, or of the block keys."""

MAX_FILE_BYTES = 16 * 1024**3
"""Larger files are rejected unread; 500 million residencies stay below."""

MAX_CLOCK_SKEW_S = 60.0
"""Accepted age below 0, in case the clock was set back."""

_PREFIX = struct.Struct("<8sI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<Q")


class SavedTier(Saved, frozen=True):
    """The fields of a configured tier that saved ledgers depend on; fields as in `TierSpec`."""

    name: str
    media: tuple[str, ...]
    chunk_blocks: int | None
    source: TierSource | None
    shared: bool


class SavedHead(Saved, frozen=True, tag="head"):
    """The conditions under which a snapshot was made.

    Attributes:
        kvatlas: version of kvatlas that made it, for people.
        created: wall-clock seconds at its start.
        models: names of the served model; block keys do not depend on the model.
        seed: seed of the block keys.
        tiers: configured tiers, fastest first.
    """

    kvatlas: str
    created: float
    models: frozenset[str]
    seed: int
    tiers: tuple[SavedTier, ...]


class SavedRank(Saved, frozen=True):
    """One data-parallel rank: the position of its stream (None without one), and its ledger at that moment."""

    rank: int
    position: StreamPosition | None
    books: SavedLedger


class SavedEndpoint(Saved, frozen=True, tag="endpoint"):
    """One endpoint.

    Attributes:
        name: unique name.
        addresses: all its addresses in one text, compared as a whole.
        uid: of the pod behind it; empty without one.
        started: its process start time in wall-clock seconds, None if unknown.
        ranks: one entry per rank.
    """

    name: str
    addresses: str
    uid: str
    started: float | None
    ranks: tuple[SavedRank, ...]

    def without_tokens(self) -> SavedEndpoint:
        """Return the same without events that wait for their parent block: they alone have token ids."""
        replace = msgspec.structs.replace
        ranks = [
            replace(each, books=replace(each.books, hashes=replace(each.books.hashes, parked=())))
            for each in self.ranks
        ]
        return replace(self, ranks=tuple(ranks))


class SavedFleet(Saved, frozen=True, tag="fleet"):
    """State that belongs to no endpoint: unconfigured media in the order of their tiers, and shared tiers by space."""

    media: tuple[MediumName, ...]
    shared: dict[str, tuple[SavedShared, ...]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that passed all checks."""

    head: SavedHead
    endpoints: dict[str, SavedEndpoint]
    fleet: SavedFleet


def saved_tiers(tiers: TierTable) -> tuple[SavedTier, ...]:
    """Return the configured tiers as saved values."""
    return tuple(
        SavedTier(
            name=spec.name,
            media=spec.media,
            chunk_blocks=spec.chunk_blocks,
            source=spec.source,
            shared=spec.shared and not spec.is_shared_by_events,
        )
        for spec in tiers.specs[: len(tiers.names)]
    )


class _Column(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    typecode: Literal["Q", "I", "d"]
    raw: bytes


class SnapshotEncoder:
    """An encoder of one snapshot, piece by piece in the order of the methods."""

    def __init__(self) -> None:
        self._digest = xxh3_64()
        self._encode = msgspec.msgpack.Encoder(enc_hook=_to_msgpack).encode

    def start(self, head: SavedHead) -> bytes:
        """Encode the head."""
        return self._counted(_PREFIX.pack(MAGIC, FORMAT) + self._frame(head))

    def endpoint(self, endpoint: SavedEndpoint) -> bytes:
        """Encode one endpoint. Cost: O(its hashes + residencies), in copies of whole columns."""
        return self._counted(self._frame(endpoint))

    def end(self, fleet: SavedFleet) -> bytes:
        """Encode the rest and the checksum."""
        return self._counted(self._frame(fleet)) + _CHECKSUM.pack(self._digest.intdigest())

    def _frame(self, body: SavedHead | SavedEndpoint | SavedFleet) -> bytes:
        encoded = self._encode(body)
        return _LENGTH.pack(len(encoded)) + encoded

    def _counted(self, piece: bytes) -> bytes:
        self._digest.update(piece)
        return piece


def read_snapshot(data: bytes, expected: SavedHead, *, max_age_s: float | None) -> Snapshot:
    """Decode the snapshot in `data` and check that this process can use it.

    Args:
        data: the whole file.
        expected: head of a snapshot that this process would start now.
        max_age_s: age beyond which a snapshot is rejected; None for one of this moment, by another machine's clock.
    Raises:
        SnapshotError: it is damaged, too old, or was made under another configuration.
    Cost: O(bytes), in copies of whole columns.
    """
    frames = list(_frames(data))
    (checksum,) = _CHECKSUM.unpack(data[-_CHECKSUM.size :])
    if xxh3_64_intdigest(memoryview(data)[: -_CHECKSUM.size]) != checksum:
        raise SnapshotError("checksum", "its checksum is wrong: the file was damaged")
    try:
        head, *endpoints, fleet = map(_DECODER.decode, frames)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SnapshotError("damaged", f"it holds an invalid value: {error}") from None
    if not isinstance(head, SavedHead) or not isinstance(fleet, SavedFleet):
        raise SnapshotError("damaged", "its first frame is not a head, or its last is not a fleet")
    if max_age_s is not None:
        _check_age(head, expected, max_age_s)
    _check_head(head, expected)
    named = {each.name: each for each in endpoints if isinstance(each, SavedEndpoint)}
    if len(named) < len(endpoints):
        raise SnapshotError("damaged", "it holds an endpoint twice, or a frame of another type")
    _check_tiers(named, fleet, expected.tiers)
    return Snapshot(head, named, fleet)


def _frames(data: bytes) -> Iterator[memoryview]:
    """Yield the bodies of the frames, undecoded."""
    if len(data) < _PREFIX.size + _CHECKSUM.size:
        raise SnapshotError("truncated", f"it has only {len(data)} bytes")
    magic, version = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotError("not_a_snapshot", f"it starts with {magic!r}, want {MAGIC!r}")
    if version != FORMAT:
        raise SnapshotError(
            "version", f"it has format {version}, this version of kvatlas reads format {FORMAT}"
        )
    view, position, end = memoryview(data), _PREFIX.size, len(data) - _CHECKSUM.size
    while position < end:
        start = position + _LENGTH.size
        (length,) = _LENGTH.unpack_from(data, position) if start <= end else (0,)
        position = start + length
        if position > end:
            raise SnapshotError("truncated", f"it has {len(data)} bytes and ends within a frame")
        yield view[start:position]


def _check_age(head: SavedHead, expected: SavedHead, max_age_s: float) -> None:
    age = expected.created - head.created
    if not -MAX_CLOCK_SKEW_S <= age <= max_age_s:
        raise SnapshotError(
            "age",
            f"it was made {age:.0f} s ago by this machine's clock, and snapshot.maxAge is {max_age_s:.0f} s",
        )


def _check_head(head: SavedHead, expected: SavedHead) -> None:
    if head.models != expected.models:
        raise SnapshotError(
            "models",
            f"it is of model {_listed(head.models)}, and model.names is {_listed(expected.models)}",
        )
    if head.seed != expected.seed:
        raise SnapshotError(
            "seed", f"its keys were made with index.hashSeed {head.seed}, which is {expected.seed} here"
        )
    if head.tiers != expected.tiers:
        differing = [
            f"{old.name if old else 'none'} (here {new.name if new else 'none'})"
            for old, new in zip_longest(head.tiers, expected.tiers)
            if old != new
        ]
        raise SnapshotError(
            "tiers",
            f"its tiers {', '.join(differing)} differ in name, media, offloadChunkBlocks, source or scope",
        )


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _check_tiers(
    endpoints: dict[str, SavedEndpoint], fleet: SavedFleet, tiers: tuple[SavedTier, ...]
) -> None:
    known = {medium.upper() for tier in tiers for medium in tier.media}
    n_media = len(fleet.media)
    if n_media > MAX_UNKNOWN_TIERS or len(known.union(fleet.media)) < len(known) + n_media:
        raise SnapshotError(
            "damaged",
            f"it has {n_media} media beside the configured ones: too many, or not distinct from those",
        )
    used = {tier for each in endpoints.values() for rank in each.ranks for tier in rank.books.tiers}
    used |= {each.tier for shared in fleet.shared.values() for each in shared}
    if not used <= set(range(len(tiers) + n_media)):
        raise SnapshotError(
            "damaged", f"it holds blocks in tiers {sorted(used)}, some of which it does not define"
        )


def _to_msgpack(value: array[Any]) -> tuple[str, memoryview]:
    """Convert a column for msgpack; msgspec encodes all other saved values itself."""
    return value.typecode, memoryview(_little_endian(value)).cast("B")


def _from_msgpack(_: type, value: object) -> array[Any]:
    column = msgspec.convert(value, _Column)
    return _little_endian(array(column.typecode, column.raw))


def _little_endian(column: array[Any]) -> array[Any]:
    """Convert a column between the machine's byte order and the file's."""
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped


_DECODER = msgspec.msgpack.Decoder(SavedHead | SavedEndpoint | SavedFleet, dec_hook=_from_msgpack)
