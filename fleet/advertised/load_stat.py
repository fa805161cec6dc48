"""Load that SGLang's servers publish: messages decoded, and the ranks of one server put together.

Source: SGLang 0.5.23, `--load-publish-endpoint`.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

from ...events.errors import WireError
from ...scorers.core.model import Load

MAX_MESSAGE_BYTES = 4096
"""Larger messages are no load: one has eleven numbers."""

MIN_SPEED, MAX_SPEED = 1.0, 1e7
"""Lowest and highest believable prefill speed in tokens per second. Costs begin at it, and only so far can they be learned from there."""

LEAST_BUSY_S = 0.1
"""Prefill time from which on a speed is told: less is a few warm-up steps."""

_Count = Annotated[int, Meta(ge=0, le=10**15)]


class LoadStat(msgspec.Struct, frozen=True, array_like=True, tag="LoadStat"):
    """Load of one rank; later versions may append fields.

    Attributes:
        running: requests being served.
        waiting: requests queued.
        tokens_in_use: tokens of KV cache in use.
        max_tokens: tokens that the KV cache holds.
        rank: data-parallel rank.
        waiting_uncached_tokens: prompt tokens of queued requests to be computed.
        tokens_in_use_or_queued: tokens in use, and of queued requests.
        max_running: most requests served at one time.
        prefill_tokens: prompt tokens computed since the start.
        prefill_busy_us: time spent on them, microseconds.
    """

    running: _Count
    waiting: _Count
    tokens_in_use: _Count
    max_tokens: _Count
    rank: Annotated[int, Meta(ge=0, lt=1024)] | None = 0
    waiting_uncached_tokens: _Count | None = None
    tokens_in_use_or_queued: _Count | None = None
    max_running: _Count | None = None
    prefill_tokens: _Count | None = None
    prefill_busy_us: Annotated[float, Meta(ge=0)] | None = None


_decode = msgspec.msgpack.Decoder(LoadStat).decode


def decode_load(frames: list[bytes]) -> LoadStat:
    """Decode a message: topic, sequence number, msgpack.

    Raises:
        WireError: it is no load (`bad_load_frames`, `bad_load`).
    """
    if len(frames) != 3 or len(frames[2]) > MAX_MESSAGE_BYTES:
        raise WireError("bad_load_frames", f"a load has {len(frames)} parts, want 3 of a few bytes")
    try:
        return _decode(frames[2])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("bad_load", f"load is unreadable: {error}") from None


class ServerLoad:
    """Loads of the ranks of one server.

    Args:
        n_ranks: data-parallel ranks; there is no load of the server before each of them has told its own.
    """

    def __init__(self, n_ranks: int) -> None:
        self._n_ranks = n_ranks
        self._ranks: dict[int, tuple[LoadStat, float]] = {}

    def take(self, stat: LoadStat, *, now: float, before: Load | None) -> Load | None:
        """Return the server's load, as old as that of its most silent rank; None while a rank is unknown.

        Args:
            stat: load of one rank; one beyond the known ranks is ignored.
            now: monotonic seconds.
            before: its load until now, whose adapters and attributes are kept.
        """
        rank = stat.rank or 0
        if rank >= self._n_ranks:
            return None
        self._ranks[rank] = stat, now
        if len(self._ranks) < self._n_ranks:
            return None
        stats = [each for each, _ in self._ranks.values()]
        held = [each.tokens_in_use / each.max_tokens if each.max_tokens else 0.0 for each in stats]
        return Load(
            waiting=sum(each.waiting for each in stats),
            running=sum(each.running for each in stats),
            kv_utilization=min(1.0, sum(held) / len(held)),
            updated_at=min(at for _, at in self._ranks.values()),
            adapters=before.adapters if before is not None else None,
            attributes=before.attributes if before is not None else None,
            gpu_tokens=sum(each.max_tokens for each in stats),
        )

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Uncached prompt tokens that one rank computes per second, mean since the start; None while unknown."""
        tokens = sum(stat.prefill_tokens or 0 for stat, _ in self._ranks.values())
        busy_s = sum(stat.prefill_busy_us or 0.0 for stat, _ in self._ranks.values()) / 1e6
        if not isfinite(busy_s) or busy_s < LEAST_BUSY_S or not tokens:
            return None
        speed = tokens / busy_s
        return min(speed, MAX_SPEED) if speed >= MIN_SPEED else None
