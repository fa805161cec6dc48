"""Text to token ids, segment by segment, with the ids the tokenizer gives for the whole text."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import msgspec
from tokenizers import Tokenizer

from ..errors import EncodeError
from .byte_pairs import BytePairEncoder, byte_pair_encoder
from .cuts import SEGMENT_CHARS, WHOLE, Cuts, proven_cuts
from .probes import probe_texts
from .segment_cache import CACHE_BYTES, Ids, SegmentCache
from .tokenizer_fields import tokenizer_fields

log = logging.getLogger(__name__)


ID_BYTES = array("I").itemsize


class Frame(NamedTuple):
    """Ids that the tokenizer's post-processor puts around those of a text."""

    before: Ids
    after: Ids


NO_FRAME = Frame(b"", b"")


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A prompt on its way to token ids.

    Attributes:
        segments: of the text, in order.
        ids: of each segment; None where they are not known yet.
        frame: what goes around them.
        adds: whether the tokenizer itself is to add its special tokens, since they make no frame.
    """

    segments: list[str]
    ids: list[Ids | None]
    frame: Frame
    adds: bool

    @property
    def n_known(self) -> int:
        """Tokens of the segments with ids."""
        return sum(map(len, filter(None, self.ids))) // ID_BYTES

    def missing(self) -> list[str]:
        """Segments without ids, each once."""
        if None not in self.ids:
            return []
        return list(dict.fromkeys(s for s, ids in zip(self.segments, self.ids, strict=True) if ids is None))

    def tokens(self, encoded: Mapping[str, Ids]) -> array[int]:
        """Ids of the whole prompt, `array('I')`.

        Args:
            encoded: ids of the missing segments.

        Raises:
            EncodeError: some are not there.
        """
        pairs = zip(self.segments, self.ids, strict=True)
        try:
            parts = [encoded[segment] if ids is None else ids for segment, ids in pairs]
        except KeyError:
            raise EncodeError("the tokenizer does not take the text") from None
        return array("I", b"".join((self.frame.before, *parts, self.frame.after)))


class SegmentEncoder:
    """Encodes texts and remembers the ids of their segments. Usable from any thread.

    Args:
        tokenizer: with truncation and padding off.
        cache_bytes: bound of the memory for segments.
        segment_chars: segments are cut at the first place after so many characters.
        cuts: where texts may be cut; None for where it is proven. They are put to a test in any case.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cache_bytes: int = CACHE_BYTES,
        segment_chars: int = SEGMENT_CHARS,
        cuts: Cuts | None = None,
    ) -> None:
        self._tokenizer, self._segment_chars = tokenizer, segment_chars
        self.cache = SegmentCache(cache_bytes)
        fields = tokenizer_fields(tokenizer)
        wanted = cuts or proven_cuts(fields)
        texts = probe_texts(tokenizer)
        self._cuts, self._frame = _tested(tokenizer, wanted, texts)
        self.is_segmented = self._cuts == wanted and self._frame is not None
        """Whether every test text got the same ids in segments as whole; if not, texts are encoded with fewer cuts."""
        native = byte_pair_encoder(fields)
        self._native = native and _agreeing(tokenizer, native, [*texts, native.sample])
        if not self.is_segmented:
            log.warning(
                "texts cut into segments do not get the ids of whole ones from this tokenizer: long prompts will be "
                "slow; please report the model"
            )

    @property
    def is_native(self) -> bool:
        """Whether most texts need not go to the library, which takes ten to thirty times as long for them."""
        return self._native is not None

    def draft(self, text: str, *, add_special_tokens: bool) -> Draft:
        """`text` in segments, with the ids of those seen before. Cost: 0.7 ns a character, twice that where some are not ASCII."""
        if add_special_tokens and self._frame is None:
            return Draft([text], [None], NO_FRAME, adds=True)
        segments = self._cuts.segments(text, self._segment_chars)
        frame = self._frame if add_special_tokens and self._frame is not None else NO_FRAME
        return Draft(segments, self.cache.find(segments), frame, adds=False)

    def encode_quickly(self, segments: Sequence[str]) -> dict[str, Ids]:
        """Ids of those segments that need no library; none where the draft is one that `adds`.

        Cost: 0.1 µs a token, while other threads run.
        """
        if self._native is None:
            return {}
        found = zip(segments, self._native.encode(segments), strict=True)
        encoded = {segment: ids for segment, ids in found if ids is not None}
        self.cache.put(encoded.items())
        return encoded

    def encode(self, segments: Sequence[str], *, adds: bool) -> dict[str, Ids]:
        """Ids of missing segments of a draft; those the tokenizer does not take are left out.

        Args:
            segments: of the draft.
            adds: as in the draft.
        Cost: that of `encode_quickly`, and for what it leaves 1.3 µs a token with a vocabulary of 32,000.
        """
        encoded = {} if adds else self.encode_quickly(segments)
        left = [segment for segment in segments if segment not in encoded]
        return encoded | self.encode_by_library(left, adds=adds) if left else encoded

    def encode_by_library(self, segments: Sequence[str], *, adds: bool) -> dict[str, Ids]:
        """As `encode`, for segments that `encode_quickly` has left."""
        try:
            encoded = dict(zip(segments, encode_texts(self._tokenizer, segments, adds=adds), strict=True))
        except EncodeError:
            encoded = {}
            for segment in segments:  # one by one, so that a bad one costs the others nothing
                with suppress(EncodeError):
                    encoded[segment] = encode_texts(self._tokenizer, [segment], adds=adds)[0]
        if not adds:
            self.cache.put(encoded.items())
        return encoded

    def tokens(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """Token ids of the whole text, `array('I')`, found out by the calling thread.

        Raises:
            EncodeError: the tokenizer does not take this text.
        """
        draft = self.draft(text, add_special_tokens=add_special_tokens)
        missing = draft.missing()
        return draft.tokens(self.encode(missing, adds=draft.adds) if missing else {})


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], *, adds: bool) -> list[Ids]:
    """Ids of each text.

    `encode_batch_fast` gives the ids of `encode` without the offsets: a third faster, and, unlike `encode`, it lets
    other threads run meanwhile (tokenizers 0.23: the longest stop of another thread was 4 ms, with `encode` 710 ms).

    Raises:
        EncodeError: the tokenizer does not take one of the texts.
    """
    try:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=adds)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # The library raises its base class for every failure of a model, and its panics are none of `Exception`.
        raise EncodeError(f"the tokenizer raised {type(error).__name__}") from error
    return [array("I", encoding.ids).tobytes() for encoding in encodings]


def _tested(tokenizer: Tokenizer, wanted: Cuts, texts: Sequence[str]) -> tuple[Cuts, Frame | None]:
    """The finest cuts that give every test text the ids of the whole, and the frame; None when there is none."""
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
    """`native`, if it gives the library's ids for every text that it takes."""
    found = native.encode(texts)
    taken = [text for text, ids in zip(texts, found, strict=True) if ids is not None]
    with suppress(EncodeError):
        if encode_texts(tokenizer, taken, adds=False) == [ids for ids in found if ids is not None]:
            return native
    log.warning(
        "the native encoder does not give the ids of this tokenizer's library: new text will take ten times as long; "
        "please report the model"
    )
    return None


def _joined(tokenizer: Tokenizer, cuts: Cuts, texts: Sequence[str], size: int) -> list[Ids] | None:
    """Ids of each text, encoded in segments; None where the tokenizer does not take one."""
    segments = [cuts.segments(text, size) for text in texts]
    try:
        encoded = iter(encode_texts(tokenizer, [part for parts in segments for part in parts], adds=False))
    except EncodeError:
        return None
    return [b"".join(next(encoded) for _ in parts) for parts in segments]


def _frame(plain: Ids, framed: Ids) -> Frame | None:
    """What `framed` has around `plain`, both ids of one text."""
    starts = range(0, len(framed) - len(plain) + 1, array("I").itemsize)
    found = next((start for start in starts if framed.startswith(plain, start)), None)
    return None if found is None else Frame(framed[:found], framed[found + len(plain) :])
