"""Copies between the tiers of one engine: loads, offloads, and fetches from storage."""

from __future__ import annotations

from collections.abc import Sequence

from .block_cache import BlockCache, Transfer
from .host_link import Copy, Direction, HostLink
from .kv_events import Event
from .service_times import ServiceTimes


class TierCopies:
    """The pending copies. Offloaded chunks are written to storage, if there is one, in the next step.

    Args:
        cache: the engine's block cache.
        times: service times.
    """

    def __init__(self, cache: BlockCache, times: ServiceTimes) -> None:
        self._cache, self._times = cache, times
        self._link = HostLink(speed_both_ways=times.copy_speed_both_ways)
        self._offloads: list[tuple[Copy, Transfer]] = []
        self._unwritten: list[Transfer] = []
        self._fetches: list[tuple[float, Transfer]] = []
        self._storage_free_at = 0.0
        self._stall_s = 0.0

    def __len__(self) -> int:
        return len(self._offloads) + len(self._unwritten) + len(self._fetches)

    @property
    def ends_with_the_step(self) -> bool:
        """Whether a copy completes at the end of the next step, however short the step is."""
        return bool(self._unwritten) or any(copy.is_done for copy, _ in self._offloads)

    def next_at(self) -> float | None:
        """Return when the next copy or fetch completes; None if there is none."""
        link_at = self._link.next_at()
        ends = [done_at for done_at, _fetch in self._fetches]
        return min(ends if link_at is None else [link_at, *ends], default=None)

    def advance(self, now: float) -> None:
        """Continue copying until `now`, in seconds."""
        self._link.advance(now)

    def take_stall(self) -> float:
        """Return by how many seconds copies begun since the last call extend the next step, if they do not overlap."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    def load(self, n_tokens: int, *, now: float) -> Copy:
        """Begin to read tokens from the CPU tier."""
        return self._begin(Direction.TO_GPU, n_tokens * self._times.load_s_per_token, now)

    def fetch(self, fetch: Transfer, *, now: float) -> float:
        """Begin to read chunks from storage into the CPU tier; return when this completes."""
        seconds = self._n_tokens(fetch) * self._times.fetch_s_per_token
        self._storage_free_at = max(now, self._storage_free_at) + seconds
        self._fetches.append((self._storage_free_at, fetch))
        return self._storage_free_at

    def offload(self, offloads: Sequence[Transfer], *, now: float) -> None:
        """Begin to copy newly computed chunks to the CPU tier."""
        for transfer in offloads:
            seconds = self._n_tokens(transfer) * self._times.store_s_per_token
            self._offloads.append((self._begin(Direction.TO_CPU, seconds, now), transfer))

    def complete_fetches(self, now: float) -> list[Event]:
        """Complete the fetches that end by `now`, and return their events."""
        events = [
            event
            for done_at, fetch in self._fetches
            if done_at <= now
            for event in self._cache.complete_transfer(fetch)
        ]
        self._fetches = [(done_at, fetch) for done_at, fetch in self._fetches if done_at > now]
        return events

    def complete_offloads(self) -> tuple[list[Event], int]:
        """End a step; return the events of storage writes and completed offloads, and the number of offloaded blocks."""
        events = [event for transfer in self._unwritten for event in self._cache.write(transfer)]
        done = [transfer for copy, transfer in self._offloads if copy.is_done]
        self._offloads = [(copy, transfer) for copy, transfer in self._offloads if not copy.is_done]
        events += [event for transfer in done for event in self._cache.complete_transfer(transfer)]
        self._unwritten = done if self._cache.has_storage else []
        return events, sum(len(transfer.chunks) for transfer in done) * self._cache.chunk_blocks

    def _begin(self, direction: Direction, seconds: float, now: float) -> Copy:
        self._stall_s += 0.0 if self._times.copies_overlap else seconds
        return self._link.begin(direction, seconds, now=now)

    def _n_tokens(self, transfer: Transfer) -> int:
        return len(transfer.chunks) * self._cache.chunk_blocks * self._cache.block_size
