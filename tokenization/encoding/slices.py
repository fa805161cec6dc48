"""Slices of new text that threads encode; short prompts come first, and work that nobody waits for is dropped.

Each slice has a tag: the characters served so far, plus those of its prompt up to its end. The slice with the lowest tag
is next. So a prompt waits for the characters of shorter ones only, and a long prompt cannot hold up the others.
Source: start-time fair queueing, Goyal et al. 1996, with each prompt as a flow that ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ..errors import EncoderBusyError
from .segment_cache import Ids
from .segment_encoder import SegmentEncoder

SLICE_CHARS = 32_768
"""A thread takes whole segments of about this many characters at a time: 10 ms of work."""


class Outcome(NamedTuple):
    """Ids of segments, and the CPU time that they took."""

    encoded: Mapping[str, Ids]
    seconds: float


@dataclass(slots=True, eq=False)
class Slice:
    """Segments that one thread encodes at once.

    Attributes:
        encoder: of the segments.
        adds: as in `Draft`.
        segments: to encode; empty once they are encoded or dropped.
        job: the state of the work, shared with the thread.
        done: `job` for the event loop.
        n_chars: length of the segments.
        n_waiting: prompts that wait for it.
    """

    encoder: SegmentEncoder
    adds: bool
    segments: Sequence[str]
    job: Future[Outcome]
    done: asyncio.Future[Outcome]
    n_chars: int
    n_waiting: int = 0

    def encode(self) -> None:
        """Encode the segments, unless the slice was dropped."""
        segments = self.segments
        try:
            self.job.set_result(timed(self.encoder.encode, segments, adds=self.adds))
        except BaseException as error:  # noqa: BLE001 - the waiting prompts raise it
            self.job.set_exception(error)


class SliceQueue:
    """Queue of the slices of one event loop, and their threads.

    Args:
        threads: number of slices that are encoded at the same time.
        on_encoded: called in the event loop with the result of each slice.

    Attributes:
        n_chars: text that is queued or being encoded.
        n_dropped: slices dropped because nobody waited for them any more.
    """

    def __init__(self, threads: int, on_encoded: Callable[[Outcome], None]) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._on_encoded = on_encoded
        self._lock = threading.Lock()
        self._queued: list[tuple[int, int, Slice]] = []
        self._served_chars = self._n_added = 0
        self._in_flight: dict[tuple[SegmentEncoder, bool], dict[str, Slice]] = {}
        self.n_chars = self.n_dropped = 0

    def in_flight(self, encoder: SegmentEncoder, *, adds: bool) -> Mapping[str, Slice]:
        """Return the segments that are queued or being encoded, with their slices."""
        return self._in_flight.get((encoder, adds), {})

    def add(self, encoder: SegmentEncoder, segments: Sequence[str], *, adds: bool) -> list[Slice]:
        """Queue segments that are not in flight; the caller must `join` the slices at once."""
        flying = self._in_flight.setdefault((encoder, adds), {}) if segments else {}
        tag = self._served_chars
        added: list[Slice] = []
        for part, n_chars in _cut(segments):
            job: Future[Outcome] = Future()
            made = Slice(encoder, adds, part, job, asyncio.wrap_future(job), n_chars)
            made.done.add_done_callback(partial(self._settle, made))
            tag += n_chars
            self.n_chars += n_chars
            self._n_added += 1
            flying |= dict.fromkeys(part, made)
            added.append(made)
            with self._lock:
                heappush(self._queued, (tag, self._n_added, made))
            self._executor.submit(self._encode_next)
        return added

    @staticmethod
    def join(slices: Iterable[Slice]) -> None:
        """Note that one more prompt waits for these slices."""
        for each in slices:
            each.n_waiting += 1

    def leave(self, slices: Iterable[Slice]) -> None:
        """Note that a prompt stopped waiting; drop the slices that nobody waits for and no thread has begun."""
        for each in slices:
            each.n_waiting -= 1
            if not each.n_waiting and each.segments and each.job.cancel():
                self.n_dropped += 1
                self._forget(each)

    def make_room(self, n_chars: int, limit: int) -> bool:
        """Return whether so much more text stays within `limit`; if needed, give up slices of longer prompts.

        The prompts that wait for these slices get an `EncoderBusyError`.
        """
        if self.n_chars + n_chars <= limit:
            return True
        with self._lock:
            end = self._served_chars + n_chars
            later = sorted(each for each in self._queued if each[0] > end)
            if self.n_chars - sum(each.n_chars for *_, each in later if each.segments) + n_chars > limit:
                return False
            self._queued = [each for each in self._queued if each[0] <= end]
            while later and self.n_chars + n_chars > limit:
                *_, last = later.pop()
                if last.job.set_running_or_notify_cancel():
                    self._forget(last)
                    last.job.set_exception(EncoderBusyError("shorter prompts came first"))
            self._queued += later
            heapify(self._queued)
        return True

    def close(self) -> None:
        """Drop the queued slices, and wait for the threads to finish their current ones."""
        slices = {each for flying in self._in_flight.values() for each in flying.values()}
        for each in slices:
            each.job.cancel()
        self._executor.shutdown(cancel_futures=True)

    def _encode_next(self) -> None:
        """Encode the next slice, in a thread."""
        while True:
            with self._lock:
                if not self._queued:
                    return
                tag, _, next_slice = heappop(self._queued)
                self._served_chars = max(self._served_chars, tag - next_slice.n_chars)
            if next_slice.job.set_running_or_notify_cancel():
                next_slice.encode()
                return

    def _settle(self, settled: Slice, done: asyncio.Future[Outcome]) -> None:
        self._forget(settled)
        # Reading the exception also keeps asyncio from logging it if no prompt waits for the result.
        if not done.cancelled() and done.exception() is None:
            self._on_encoded(done.result())

    def _forget(self, gone: Slice) -> None:
        if not gone.segments:
            return
        flying = self._in_flight[gone.encoder, gone.adds]
        for segment in gone.segments:
            del flying[segment]
        if not flying:
            del self._in_flight[gone.encoder, gone.adds]
        self.n_chars -= gone.n_chars
        gone.segments = ()


def timed(encode: Callable[..., Mapping[str, Ids]], segments: Sequence[str], **options: bool) -> Outcome:
    """Call `encode`, and measure its CPU time."""
    started = time.thread_time()
    encoded = encode(segments, **options)
    return Outcome(encoded, time.thread_time() - started)


def _cut(segments: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Yield segments for one slice each, with the number of their characters."""
    part: list[str] = []
    n_chars = 0
    for segment in segments:
        part.append(segment)
        n_chars += len(segment)
        if n_chars >= SLICE_CHARS:
            yield part, n_chars
            part, n_chars = [], 0
    if part:
        yield part, n_chars
