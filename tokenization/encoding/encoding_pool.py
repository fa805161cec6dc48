"""Thread pool that encodes prompts within a time budget; concurrent requests with the same text share the work."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ..errors import EncoderBusyError, EncodeTimeoutError
from ..eventual import Eventual, Known, Later
from .segment_cache import Ids
from .segment_encoder import Draft, SegmentEncoder

INLINE_CHARS = 4096
"""New text up to this length is encoded on the event loop itself: 1 ms with a vocabulary of 32,000.

Measured with tokenizers 0.23: 0.3 µs per character. Passing a text to a thread and back costs 0.1 ms.
"""

QUICK_CHARS = 32_768
"""As INLINE_CHARS, for texts that the native encoder supports: 1 ms if no word is cached."""

SLICE_CHARS = 32_768
"""A thread takes whole segments of about this many characters at a time: 10 ms of work."""

QUEUE_CHARS = 16 * 2**20
"""Limit of the queued text: 5 s of work for one thread."""

THREADS = 2
TIMEOUT_S = 0.4


@dataclass(slots=True)
class EncodingCounters:
    """Totals of all encoded prompts.

    Attributes:
        cached_tokens: tokens found in the cache of segments.
        encoded_tokens: tokens that had to be encoded.
        encode_seconds: CPU time of encoding.
        timeouts: prompts that were not encoded in time.
        refusals: prompts rejected because the queue was full.
    """

    cached_tokens: int = 0
    encoded_tokens: int = 0
    encode_seconds: float = 0.0
    timeouts: int = 0
    refusals: int = 0


_Encode = Callable[[Sequence[str]], Mapping[str, Ids]]


class _Outcome(NamedTuple):
    encoded: Mapping[str, Ids]
    seconds: float


class _Key(NamedTuple):
    """Key of one segment to encode; concurrent prompts share the work of equal keys."""

    encoder: SegmentEncoder
    adds: bool
    segment: str


class EncodingPool:
    """A few threads that encode for one event loop.

    Args:
        threads: number of slices that are encoded at the same time.
        timeout_s: longest wait for a prompt. Its encoding continues after that, for the next prompt with the same text.
        queue_chars: new text is rejected while this much text is queued or being encoded.
    """

    def __init__(
        self, *, threads: int = THREADS, timeout_s: float = TIMEOUT_S, queue_chars: int = QUEUE_CHARS
    ) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._timeout_s = timeout_s
        self._in_flight: dict[_Key, asyncio.Future[_Outcome]] = {}
        self._max_queued_chars, self._queued_chars = queue_chars, 0
        self.counters = EncodingCounters()

    def tokens(self, encoder: SegmentEncoder, text: str, *, add_special_tokens: bool) -> Eventual[array[int]]:
        """Return the token ids of `text`, `array('I')`; at once if little text is new.

        Raises:
            EncodeError: the tokenizer rejects the text.
            EncodeTimeoutError: the text was not encoded in time; only if awaited.
            EncoderBusyError: the queue is full; only if awaited.
        """
        draft = encoder.draft(text, add_special_tokens=add_special_tokens)
        self.counters.cached_tokens += draft.n_known
        missing = draft.missing()
        encoded: Mapping[str, Ids] = {}
        if missing and not draft.adds and sum(map(len, missing)) <= QUICK_CHARS:
            encoded = self._counted(encoder.encode_quickly, missing)
            missing = [segment for segment in missing if segment not in encoded]
        if sum(map(len, missing)) > INLINE_CHARS:
            return Later(self._in_threads(encoder, draft, missing, encoded))
        if missing:
            encoded = {
                **encoded,
                **self._counted(partial(encoder.encode_by_library, adds=draft.adds), missing),
            }
        return Known(draft.tokens(encoded))

    def close(self) -> None:
        """Drop the queued text, and wait for the threads to finish their current slices."""
        self._executor.shutdown(cancel_futures=True)

    async def _in_threads(
        self, encoder: SegmentEncoder, draft: Draft, missing: Sequence[str], known: Mapping[str, Ids]
    ) -> array[int]:
        keys = [_Key(encoder, draft.adds, segment) for segment in missing]
        new = [key for key in keys if key not in self._in_flight]
        if new and self._queued_chars >= self._max_queued_chars:
            self.counters.refusals += 1
            raise EncoderBusyError(f"{self._queued_chars} characters wait for a thread")
        for part in _slices(new):
            self._submit(part)
        futures = {self._in_flight[key] for key in keys}
        done, pending = await asyncio.wait(futures, timeout=self._timeout_s)
        if pending:
            self.counters.timeouts += 1
            raise EncodeTimeoutError(f"tokenization took longer than {self._timeout_s:g} s")
        encoded = dict(known)
        for future in done:
            encoded.update(future.result().encoded)
        return draft.tokens(encoded)

    def _submit(self, part: list[_Key]) -> None:
        encoder, adds, _ = part[0]
        segments = [key.segment for key in part]
        n_chars = sum(map(len, segments))
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, _timed, partial(encoder.encode, adds=adds), segments)

        def settle(done: asyncio.Future[_Outcome]) -> None:
            self._queued_chars -= n_chars
            for key in part:
                del self._in_flight[key]
            # Reading the exception also keeps asyncio from logging it if no prompt waits for the result.
            if not done.cancelled() and done.exception() is None:
                self._count(done.result())

        self._queued_chars += n_chars
        self._in_flight |= dict.fromkeys(part, future)
        future.add_done_callback(settle)

    def _counted(self, encode: _Encode, segments: Sequence[str]) -> Mapping[str, Ids]:
        outcome = _timed(encode, segments)
        self._count(outcome)
        return outcome.encoded

    def _count(self, outcome: _Outcome) -> None:
        self.counters.encode_seconds += outcome.seconds
        self.counters.encoded_tokens += sum(map(len, outcome.encoded.values())) // array("I").itemsize


def _slices(keys: Sequence[_Key]) -> Iterator[list[_Key]]:
    part: list[_Key] = []
    n_chars = 0
    for key in keys:
        part.append(key)
        n_chars += len(key.segment)
        if n_chars >= SLICE_CHARS:
            yield part
            part, n_chars = [], 0
    if part:
        yield part


def _timed(encode: _Encode, segments: Sequence[str]) -> _Outcome:
    started = time.thread_time()
    encoded = encode(segments)
    return _Outcome(encoded, time.thread_time() - started)
