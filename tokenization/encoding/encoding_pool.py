"""Thread pool that encodes prompts within a time budget; concurrent requests with the same text share the work."""

from __future__ import annotations

import asyncio
from array import array
from asyncio import FIRST_EXCEPTION
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ..errors import EncoderBusyError, EncodeTimeoutError, TextTooLongError
from ..eventual import Eventual, Known, Later
from .segment_cache import Ids
from .segment_encoder import Draft, SegmentEncoder
from .slices import Outcome, SliceQueue, timed

INLINE_CHARS = 4096
"""New text up to this length is encoded on the event loop itself: 1 ms with a vocabulary of 32,000.

Measured with tokenizers 0.23: 0.3 µs per character. Passing a text to a thread and back costs 0.1 ms.
"""

QUICK_CHARS = 32_768
"""As INLINE_CHARS, for texts that the native encoder supports: 1 ms if no word is cached."""

DRAFT_CHARS = 2**20
"""Texts up to this length are split into segments on the event loop: 0.7 ms, and 11 ms for the worst ones."""

QUEUE_CHARS = 16 * 2**20
"""Default limit of the queued text: 5 s of work for one thread."""

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


class EncodingPool:
    """A few threads that encode for one event loop.

    Args:
        threads: number of slices that are encoded at the same time.
        timeout_s: longest wait for a prompt. After it, slices that no other prompt waits for are dropped, unless a thread
            has begun them.
        queue_chars: limit of the text that is queued or being encoded, and of one text. Past it, the longest prompts give
            way to shorter ones.
    """

    def __init__(
        self, *, threads: int = THREADS, timeout_s: float = TIMEOUT_S, queue_chars: int = QUEUE_CHARS
    ) -> None:
        self._timeout_s, self.max_chars = timeout_s, queue_chars
        self._queue = SliceQueue(threads, self._count)
        # Apart from the others, so that known text is found however much new text is queued.
        self._drafting = ThreadPoolExecutor(1, thread_name_prefix="draft")
        self.counters = EncodingCounters()

    @property
    def queued_chars(self) -> int:
        """Characters that are queued or being encoded."""
        return self._queue.n_chars

    @property
    def dropped_slices(self) -> int:
        """Slices that were not encoded, since nobody waited for them any more."""
        return self._queue.n_dropped

    def tokens(self, encoder: SegmentEncoder, text: str, *, add_special_tokens: bool) -> Eventual[array[int]]:
        """Return the token ids of `text`, `array('I')`; at once if little text is new.

        Args:
            encoder: of the text.
            text: the prompt.
            add_special_tokens: whether the tokenizer adds its special tokens.

        Raises:
            EncodeError: the tokenizer rejects the text.
            TextTooLongError: the text, or a part of it that cannot be cut, is longer than the limit.
            EncodeTimeoutError: the text was not encoded in time; only if awaited.
            EncoderBusyError: the queue is full; only if awaited.
        """
        if len(text) > self.max_chars:
            raise TextTooLongError(f"the text has more than {self.max_chars} characters")
        if len(text) > DRAFT_CHARS:
            drafted = partial(_drafted, encoder, text, add_special_tokens=add_special_tokens)
            return Later(self._long(encoder, drafted))
        draft = encoder.draft(text, add_special_tokens=add_special_tokens)
        if None not in draft.ids:  # as for most prompts that continue a conversation, or repeat
            ids = draft.tokens({})
            self.counters.cached_tokens += len(ids) - draft.frame.n_tokens
            return Known(ids)
        self.counters.cached_tokens += draft.n_known
        missing = draft.missing()
        encoded: Mapping[str, Ids] = {}
        if not draft.adds and sum(map(len, missing)) <= QUICK_CHARS:
            encoded = self._counted(encoder.encode_quickly, missing)
            missing = [segment for segment in missing if segment not in encoded]
        if sum(map(len, missing)) > INLINE_CHARS:
            return Later(self._in_threads(encoder, draft, missing, encoded))
        if missing:
            encoded = {**encoded, **self._counted(encoder.encode_by_library, missing, adds=draft.adds)}
        return Known(draft.tokens(encoded))

    def close(self) -> None:
        """Drop the queued text, and wait for the threads to finish their current slices."""
        self._queue.close()
        self._drafting.shutdown(cancel_futures=True)

    async def _long(
        self, encoder: SegmentEncoder, drafted: Callable[[], tuple[Draft, list[str]]]
    ) -> array[int]:
        begun = asyncio.get_running_loop().time()
        try:
            draft, missing = await asyncio.wait_for(
                asyncio.wrap_future(self._drafting.submit(drafted)), self._timeout_s
            )
        except TimeoutError:
            raise self._timeout() from None
        self.counters.cached_tokens += draft.n_known
        if not missing:
            return await self._joined(draft, {})
        return await self._in_threads(encoder, draft, missing, {}, begun)

    async def _joined(self, draft: Draft, encoded: Mapping[str, Ids]) -> array[int]:
        """Join the ids of a long text in the thread: up to 64 MiB."""
        return await asyncio.wrap_future(self._drafting.submit(draft.tokens, encoded))

    async def _in_threads(
        self,
        encoder: SegmentEncoder,
        draft: Draft,
        missing: Sequence[str],
        known: Mapping[str, Ids],
        begun: float | None = None,
    ) -> array[int]:
        queue = self._queue
        in_flight = queue.in_flight(encoder, adds=draft.adds)
        new = [segment for segment in missing if segment not in in_flight]
        slices = {in_flight[segment] for segment in missing if segment in in_flight}
        if new and not queue.make_room(sum(map(len, new)), self.max_chars):
            self.counters.refusals += 1
            raise EncoderBusyError(f"{queue.n_chars} characters wait for a thread")
        slices.update(queue.add(encoder, new, adds=draft.adds))
        queue.join(slices)
        encoded = dict(known)
        try:
            done, pending = await asyncio.wait(
                {each.done for each in slices}, timeout=self._left_s(begun), return_when=FIRST_EXCEPTION
            )
            for future in done:
                encoded.update(future.result().encoded)
        except EncoderBusyError:
            self.counters.refusals += 1
            raise
        finally:
            queue.leave(slices)
        if pending:
            raise self._timeout()
        if begun is None:
            return draft.tokens(encoded)
        return await self._joined(draft, encoded)

    def _left_s(self, begun: float | None) -> float:
        if begun is None:
            return self._timeout_s
        return max(0.0, begun + self._timeout_s - asyncio.get_running_loop().time())

    def _timeout(self) -> EncodeTimeoutError:
        self.counters.timeouts += 1
        return EncodeTimeoutError(f"tokenization took longer than {self._timeout_s:g} s")

    def _counted(
        self, encode: Callable[..., Mapping[str, Ids]], segments: Sequence[str], **options: bool
    ) -> Mapping[str, Ids]:
        outcome = timed(encode, segments, **options)
        self._count(outcome)
        return outcome.encoded

    def _count(self, outcome: Outcome) -> None:
        self.counters.encode_seconds += outcome.seconds
        self.counters.encoded_tokens += sum(map(len, outcome.encoded.values())) // array("I").itemsize


def _drafted(encoder: SegmentEncoder, text: str, *, add_special_tokens: bool) -> tuple[Draft, list[str]]:
    draft = encoder.draft(text, add_special_tokens=add_special_tokens)
    return draft, draft.missing()
