"""Encoder that works segment by segment, with a cache, and returns the tokenizer's ids for the whole text."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import msgspec
from tokenizers import Tokenizer

from ..errors import EncodeError, TextTooLongError
from .byte_pairs import BytePairEncoder, byte_pair_encoder
from .cuts import SEGMENT_CHARS, WHOLE, Cuts, proven_cuts
from .probes import probe_texts
from .segment_cache import CACHE_BYTES, Ids, SegmentCache
from .tokenizer_fields import tokenizer_fields

log = logging.getLogger(__name__)


ID_BYTES = array("I").itemsize

PIECE_BYTES = 2**20
"""Default length of the longest segment that the library encodes. It takes 0.3 s and 140 MiB for 1 MiB of one word, and
cannot be stopped; the time limit of a prompt is 0.4 s. 1 MiB is a prompt of about 300,000 tokens without a place to cut.
"""

COMPOSED = 2
"""Most characters that a normal form composes into one, by byte of the latter: three marks and letters into two bytes."""

NATIVE_PIECES = 4
"""The native encoder gets segments this many times as long: it takes 16 bytes per byte, and 5 ns, or 75 ns for the worst
words."""


@dataclass(frozen=True, slots=True)
class EncodingLimits:
    """Limits of the texts of one tokenizer.

    Attributes:
        piece_bytes: longest segment that is passed to the library, in UTF-8; longer ones get no ids.
        context_tokens: length of the model's context; None if it is not known.
    """

    piece_bytes: int = PIECE_BYTES
    context_tokens: int | None = None


class Frame(NamedTuple):
    """Ids that the tokenizer's post-processor adds before and after those of a text."""

    before: Ids
    after: Ids

    @property
    def n_tokens(self) -> int:
        """Number of these ids."""
        return (len(self.before) + len(self.after)) // ID_BYTES


NO_FRAME = Frame(b"", b"")

JOINED_AT_ONCE = 1024
"""Segments whose ids are joined in one step, the fastest way; more take longer than a few milliseconds."""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A partially encoded prompt.

    Attributes:
        segments: of the text, in order.
        ids: of each segment; None for segments that are not cached.
        frame: ids to add around those of the segments.
        adds: whether the tokenizer must add its special tokens itself, since they do not form a frame.
        piece_bytes: longest segment that the library encodes.
    """

    segments: list[str]
    ids: list[Ids | None]
    frame: Frame
    adds: bool
    piece_bytes: int

    @property
    def n_known(self) -> int:
        """Number of tokens of the cached segments."""
        return sum(map(len, filter(None, self.ids))) // ID_BYTES

    def missing(self) -> list[str]:
        """Return the segments without ids, each once."""
        if None not in self.ids:
            return []
        return list(dict.fromkeys(s for s, ids in zip(self.segments, self.ids, strict=True) if ids is None))

    def tokens(self, encoded: Mapping[str, Ids]) -> array[int]:
        """Join the ids of the whole prompt, `array('I')`.

        Args:
            encoded: ids of the missing segments.

        Raises:
            EncodeError: a missing segment is not in `encoded`.
            TextTooLongError: the same, since the segment is too long.
        """
        parts = [self.frame.before, *self._completed(encoded), self.frame.after]
        if len(parts) <= JOINED_AT_ONCE:
            return array("I", b"".join(parts))
        ids = array("I")
        for part in parts:  # other threads run in between
            ids.frombytes(part)
        return ids

    def _completed(self, encoded: Mapping[str, Ids]) -> list[Ids]:
        if None not in self.ids:
            return cast("list[Ids]", self.ids)
        pairs = zip(self.segments, self.ids, strict=True)
        try:
            return [encoded[segment] if ids is None else ids for segment, ids in pairs]
        except KeyError as error:
            if exceeds(error.args[0], self.piece_bytes):
                why = f"a part of the text that cannot be cut has more than {self.piece_bytes} bytes"
                raise TextTooLongError(why) from None
            raise EncodeError("the tokenizer rejects the text") from None


class SegmentEncoder:
    """Encoder that caches the ids of text segments. Usable from any thread.

    Args:
        tokenizer: with truncation and padding off.
        cache_bytes: memory limit of the cache.
        segment_chars: a segment ends at the first possible place after this many characters.
        cuts: places at which texts can be cut; None for the proven ones. They are tested in either case.
        limits: of the texts; None for the defaults.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cache_bytes: int = CACHE_BYTES,
        segment_chars: int = SEGMENT_CHARS,
        cuts: Cuts | None = None,
        limits: EncodingLimits | None = None,
    ) -> None:
        self._tokenizer, self._segment_chars = tokenizer, segment_chars
        limits = limits or EncodingLimits()
        self._piece_bytes = limits.piece_bytes
        self.cache = SegmentCache(cache_bytes)
        fields = tokenizer_fields(tokenizer)
        wanted = cuts or proven_cuts(fields)
        texts = probe_texts(tokenizer)
        self._cuts, self._frame = _tested(tokenizer, wanted, texts)
        self.is_segmented = self._cuts == wanted and self._frame is not None
        """Whether all test texts got the same ids in segments as whole; otherwise texts are cut at fewer places."""
        native = byte_pair_encoder(fields)
        self._native = native and _agreeing(tokenizer, native, [*texts, native.sample])
        self._max_chars: int | None = None
        if limits.context_tokens is not None and self.is_native:
            # Only a tokenizer that drops no characters gives each token at most the characters of the longest one.
            self._max_chars = limits.context_tokens * _longest_token(
                tokenizer, is_normalized=bool(fields.normalizers)
            )
        if not self.is_segmented:
            log.warning(
                "this tokenizer gives other ids for segments of a text than for the whole text, so long prompts will be "
                "slow; please report the model"
            )

    @property
    def is_native(self) -> bool:
        """Whether the native encoder supports most texts; the library takes ten to thirty times as long."""
        return self._native is not None

    def check_fits(self, text: str) -> None:
        """Check that `text` may fit into the model's context.

        Raises:
            TextTooLongError: it does not, even if each of its tokens is the longest of the vocabulary.
        """
        if self._max_chars is not None and len(text) > self._max_chars:
            raise TextTooLongError(
                f"the text has more than {self._max_chars} characters, which cannot fit into the model's context"
            )

    def draft(self, text: str, *, add_special_tokens: bool) -> Draft:
        """Split `text` into segments and look up their ids.

        Cost: 0.7 ns per character, twice that if some are not ASCII.
        """
        if add_special_tokens and self._frame is None:
            return Draft([text], [None], NO_FRAME, adds=True, piece_bytes=self._piece_bytes)
        segments = self._cuts.segments(text, self._segment_chars)
        frame = self._frame if add_special_tokens and self._frame is not None else NO_FRAME
        found = self.cache.find(segments)
        return Draft(segments, found, frame, adds=False, piece_bytes=self._piece_bytes)

    def encode_quickly(self, segments: Sequence[str]) -> dict[str, Ids]:
        """Return the ids of those segments that the native encoder supports. Not for drafts that `adds`.

        Cost: 0.1 µs per token, without holding the GIL.
        """
        if self._native is None:
            return {}
        segments = _within(segments, NATIVE_PIECES * self._piece_bytes)
        found = zip(segments, self._native.encode(segments), strict=True)
        encoded = {segment: ids for segment, ids in found if ids is not None}
        self.cache.put(encoded.items())
        return encoded

    def encode(self, segments: Sequence[str], *, adds: bool) -> dict[str, Ids]:
        """Return the ids of missing segments of a draft; those that are too long or that the tokenizer rejects are omitted.

        Args:
            segments: of the draft.
            adds: as in the draft.
        Cost: that of `encode_quickly`, plus 1.3 µs per token for the other segments with a vocabulary of 32,000.
        """
        encoded = {} if adds else self.encode_quickly(segments)
        left = [segment for segment in segments if segment not in encoded]
        return encoded | self.encode_by_library(left, adds=adds) if left else encoded

    def encode_by_library(self, segments: Sequence[str], *, adds: bool) -> dict[str, Ids]:
        """Encode as `encode` does, for segments that `encode_quickly` does not support."""
        segments = _within(segments, self._piece_bytes)
        try:
            encoded = dict(zip(segments, encode_texts(self._tokenizer, segments, adds=adds), strict=True))
        except EncodeError:
            encoded = {}
            for segment in segments:  # one by one, so that a rejected one does not affect the others
                with suppress(EncodeError):
                    encoded[segment] = encode_texts(self._tokenizer, [segment], adds=adds)[0]
        if not adds:
            self.cache.put(encoded.items())
        return encoded

    def tokens(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """Return the token ids of the whole text, `array('I')`, encoded in the calling thread.

        Raises:
            EncodeError: the tokenizer rejects this text.
        """
        draft = self.draft(text, add_special_tokens=add_special_tokens)
        missing = draft.missing()
        return draft.tokens(self.encode(missing, adds=draft.adds) if missing else {})


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], *, adds: bool) -> list[Ids]:
    """Encode each text with the library.

    `encode_batch_fast` returns the ids of `encode` without the offsets. It is a third faster and, unlike `encode`, releases
    the GIL (tokenizers 0.23: it blocked other threads for 4 ms at most, `encode` for 710 ms).

    Raises:
        EncodeError: the tokenizer rejects one of the texts.
    """
    try:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=adds)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # The library raises its base class for every failure of a model, and its panics do not derive from `Exception`.
        raise EncodeError(f"the tokenizer raised {type(error).__name__}") from error
    return [array("I", encoding.ids).tobytes() for encoding in encodings]


def exceeds(text: str, n_bytes: int) -> bool:
    """Return whether `text` is longer than this in UTF-8. Cost: a copy of the text if it has nearly this length."""
    if len(text) > n_bytes or text.isascii() or 4 * len(text) <= n_bytes:
        return len(text) > n_bytes
    return len(text.encode(errors="surrogatepass")) > n_bytes


def _longest_token(tokenizer: Tokenizer, *, is_normalized: bool) -> int:
    """Return the most characters of a text that one token of a byte-level tokenizer stands for."""
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return COMPOSED * longest if is_normalized else longest


def _within(segments: Sequence[str], n_bytes: int) -> Sequence[str]:
    """Return the segments that are not too long."""
    if 4 * max(map(len, segments), default=0) <= n_bytes:
        return segments
    return [segment for segment in segments if not exceeds(segment, n_bytes)]


def _tested(tokenizer: Tokenizer, wanted: Cuts, texts: Sequence[str]) -> tuple[Cuts, Frame | None]:
    """Return the finest cuts with which all test texts get the ids of the whole, and the frame; None if there is none."""
    try:
        plain = encode_texts(tokenizer, texts, adds=False)
        framed = encode_texts(tokenizer, texts, adds=True)
    except EncodeError:
        return WHOLE, None
    frame = _frame(plain[0], framed[0])
    if frame is not None and [frame.before + ids + frame.after for ids in plain] != framed:
        frame = None
    for cuts in (wanted, replace(wanted, followers="")):
        if all(_joined(tokenizer, cuts, texts, size) == plain for size in (1, 8)):
            return cuts, frame
    return WHOLE, frame


def _agreeing(tokenizer: Tokenizer, native: BytePairEncoder, texts: Sequence[str]) -> BytePairEncoder | None:
    """Return `native` if it gives the library's ids for all texts that it supports, otherwise None."""
    found = native.encode(texts)
    taken = [text for text, ids in zip(texts, found, strict=True) if ids is not None]
    with suppress(EncodeError):
        if encode_texts(tokenizer, taken, adds=False) == [ids for ids in found if ids is not None]:
            return native
    log.warning(
        "the native encoder gives other ids for this tokenizer than the library, so new text will take ten times as long; "
        "please report the model"
    )
    return None


def _joined(tokenizer: Tokenizer, cuts: Cuts, texts: Sequence[str], size: int) -> list[Ids] | None:
    """Return the ids of each text, encoded in segments; None if the tokenizer rejects one."""
    segments = [cuts.segments(text, size) for text in texts]
    try:
        encoded = iter(encode_texts(tokenizer, [part for parts in segments for part in parts], adds=False))
    except EncodeError:
        return None
    return [b"".join(next(encoded) for _ in parts) for parts in segments]


def _frame(plain: Ids, framed: Ids) -> Frame | None:
    """Return the ids that `framed` has around `plain`, both ids of one text; None if `framed` does not contain `plain`."""
    starts = range(0, len(framed) - len(plain) + 1, array("I").itemsize)
    found = next((start for start in starts if framed.startswith(plain, start)), None)
    return None if found is None else Frame(framed[:found], framed[found + len(plain) :])
