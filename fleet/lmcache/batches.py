"""Batches of LMCache's MP servers: decoded, put in order, and turned into events of an engine.

A server numbers its batches from 1 within one incarnation. A higher incarnation means that the server restarted with empty
memory, so everything that it said of its memory (tier l1) is void; what lies in storage (l2) stays.
Source: LMCache 0.5.6, MP coordinator, schema 1.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ...events.errors import EventsError
from ...events.model import BlockRemoved, BlockStored, EngineHash, MediumName

MAX_BATCHES = 4096
"""Batches of one call; a server sends the few of one second."""

MAX_ENTRIES = 16_384
"""Entries of one batch: chunks of four million tokens."""

MAX_CHUNK_TOKENS = 65_536
"""Largest believable chunk."""

MAX_INSTANCES = 4096
"""Instances whose position is kept; beyond that the one that was silent for longest is forgotten."""

L1 = MediumName("LMCACHE-L1")
"""Medium of the memory of an LMCache server."""

_Name = Annotated[str, Meta(max_length=256)]
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class LmcacheError(EventsError):
    """A body is no list of LMCache's batches."""


class ChunkKey(msgspec.Struct, frozen=True):
    """Name of one chunk's part on one rank."""

    chunk_hash_hex: Annotated[str, Meta(min_length=1, max_length=128, pattern="^([0-9a-fA-F]{2})+$")]
    model_name: _Name
    kv_rank: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    object_group_id: _Count = 0
    cache_salt: _Name = ""

    @property
    def engine_hash(self) -> EngineHash:
        """The hash as an engine's event has it: its last 8 bytes."""
        return EngineHash(int(self.chunk_hash_hex[-16:], 16))


class Entry(msgspec.Struct, frozen=True):
    """One chunk; `token_offset` is -1 if it is unknown, and later versions name the chunk before it."""

    key: ChunkKey
    size_bytes: _Count = 0
    token_ids: Annotated[list[Annotated[int, Meta(ge=0, lt=2**32)]], Meta(max_length=MAX_CHUNK_TOKENS)] = []
    token_offset: Annotated[int, Meta(ge=-1, lt=2**31)] = -1
    parent_hash_hex: Annotated[str, Meta(max_length=128, pattern="^([0-9a-fA-F]{2})*$")] = ""


class CacheBatch(msgspec.Struct, frozen=True):
    """Changes of one kind, in one tier and backend."""

    instance_id: Annotated[str, Meta(min_length=1, max_length=256)]
    incarnation: _Count
    seq: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    event_type: Literal["store", "delete", "access", "config"]
    tier: Literal["l1", "l2"] = "l1"
    backend: _Name = ""
    entries: Annotated[list[Entry], Meta(max_length=MAX_ENTRIES)] = []
    shared: bool = False
    ts: float = 0.0
    capacity_bytes: _Count = 0
    capacity_revision: _Count = 0

    @property
    def medium(self) -> MediumName:
        """Medium of its tier and backend, as LMCache's own publisher of engine events names it."""
        return L1 if self.tier == "l1" else MediumName(f"LMCACHE-L2-{self.backend}".upper())


class CacheEvents(msgspec.Struct, frozen=True):
    """Body of `POST /events`."""

    batches: Annotated[list[CacheBatch], Meta(max_length=MAX_BATCHES)]


_decode = msgspec.json.Decoder(CacheEvents).decode


def read_batches(body: bytes) -> list[CacheBatch]:
    """Decode the body of a call. Cost: about 10 ns per byte.

    Raises:
        LmcacheError: it is no list of batches, or past a limit.
    """
    try:
        return _decode(body).batches
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LmcacheError(f"body is no list of LMCache's batches: {error}") from None


class Outcome(StrEnum):
    """What became of a batch."""

    APPLIED = "applied"
    DUPLICATE = "duplicates"
    STALE = "stale"
    """Of an incarnation that has ended."""


@dataclass(slots=True)
class Position:
    """Position of one server's stream; `n_lost` batches of this incarnation never came."""

    incarnation: int
    last_seq: int = 0
    n_lost: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a batch, and whether the server's memory was emptied before it."""

    outcome: Outcome
    restarted: bool = False


class Gate:
    """Puts the batches of all servers in order."""

    def __init__(self) -> None:
        self._positions: OrderedDict[str, Position] = OrderedDict()

    def judge(self, batch: CacheBatch) -> Verdict:
        """Return what is to become of a batch, and note that it came."""
        position = self._positions.get(batch.instance_id)
        restarted = position is not None and batch.incarnation > position.incarnation
        if position is not None and batch.incarnation < position.incarnation:
            return Verdict(Outcome.STALE)
        if position is None or restarted:
            position = self._positions[batch.instance_id] = Position(batch.incarnation)
        self._positions.move_to_end(batch.instance_id)
        if len(self._positions) > MAX_INSTANCES:
            self._positions.popitem(last=False)
        if batch.seq <= position.last_seq:
            return Verdict(Outcome.DUPLICATE)
        if position.last_seq:  # what a server said before our start is not lost, only unknown
            position.n_lost += batch.seq - position.last_seq - 1
        position.last_seq = batch.seq
        return Verdict(Outcome.APPLIED, restarted)

    def position(self, instance_id: str) -> Position | None:
        """Return the position of a server's stream, None if nothing came from it."""
        return self._positions.get(instance_id)


class LeftOut(StrEnum):
    """Why a stored chunk is left out: nothing can be known of it."""

    NO_PARENT = "no_parent"
    """It continues a prompt, and neither itself nor its batch names the chunk before it."""
    NO_TOKENS = "no_tokens"


def events_of(batch: CacheBatch) -> Iterator[BlockStored | BlockRemoved | LeftOut]:
    """Yield a batch's stores or removals as an engine would send them, and for each chunk left out the reason.

    A chunk that is not the first of its prompt needs the one before it: named, or the entry before it in the batch. Only the
    first group of the KV cache counts.
    """
    if batch.event_type == "delete":
        hashes = tuple(entry.key.engine_hash for entry in batch.entries if not entry.key.object_group_id)
        if hashes:
            yield BlockRemoved(hashes, batch.medium)
    if batch.event_type != "store":
        return
    before: Entry | None = None
    for entry in batch.entries:
        if entry.key.object_group_id:
            continue
        if not entry.token_ids:
            yield LeftOut.NO_TOKENS
            continue
        parent = _parent(entry, before)
        before = entry
        if parent is None and entry.token_offset:
            yield LeftOut.NO_PARENT
            continue
        yield BlockStored(
            (entry.key.engine_hash,), parent, array("I", entry.token_ids), len(entry.token_ids), batch.medium,
            extra_keys=((entry.key.cache_salt,),) if entry.key.cache_salt else None,
        )  # fmt: skip


def _parent(entry: Entry, before: Entry | None) -> EngineHash | None:
    if entry.parent_hash_hex:
        return EngineHash(int(entry.parent_hash_hex[-16:], 16))
    if before is None or entry.token_offset <= 0 or before.token_offset < 0:
        return None
    same = (before.key.model_name, before.key.cache_salt, before.key.kv_rank) == (
        entry.key.model_name, entry.key.cache_salt, entry.key.kv_rank,
    )  # fmt: skip
    follows = before.token_offset + len(before.token_ids) == entry.token_offset
    return before.key.engine_hash if same and follows else None
