"""Where a text may be cut so that its segments, encoded one by one, give the ids of the whole text.

Before certain added tokens: the tokenizer looks for added tokens first, leftmost and longest, and what lies between two
matches is normalized, split and encoded by itself. A segment begins with its added token, so that what follows is at
the same place of its text, not at the start, as in the whole. And between words, where `word_cuts` has a proof.

Every cut depends only on the text before it and the character after it. So texts with a common beginning have their
segments in common, but for the last one there.
Source: tokenizers added_vocabulary.rs, `extract_and_normalize`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .tokenizer_fields import AddedToken, TokenizerFields
from .word_cuts import LETTERS, followers, letter_ranges

if TYPE_CHECKING:
    from ._native import Cutter

SEGMENT_CHARS = 2048
"""A segment is cut at the first proven place after so many characters, about 500 tokens, and before an added token if it
has an eighth of that: a line between two messages is no segment of its own.

Measured with a vocabulary of 32,000: encoding one takes 0.6 ms, which a text that grew at its end pays once more, and
looking up a text of 400,000 characters 0.4 ms.
"""

_SIGNS = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^`{|}~""")


@dataclass(frozen=True)
class Cuts:
    """Both kinds of places.

    Attributes:
        tokens: contents of added tokens to cut before.
        followers: characters to cut before when a letter stands before them; empty where nothing is proven.
    """

    tokens: frozenset[str]
    followers: str

    def segments(self, text: str, size: int) -> list[str]:
        """`text` in segments, none empty; about `size` characters long where words can be told apart.

        Cost: 0.3 ns a character, 0.7 ns where some are not ASCII; without the native part 1.2 ns.
        """
        if self._native is not None:
            with suppress(UnicodeEncodeError):  # half a surrogate pair
                return self._native.segments(text, size)
        return self.segments_by_patterns(text, size)

    def segments_by_patterns(self, text: str, size: int) -> list[str]:
        """As `segments`, without the native part."""
        ends = [token.start() for token in self._token.finditer(text)] if self.tokens else []
        shortest = max(1, size // 8)
        found: list[str] = []
        begin = 0
        for end in (*ends, len(text)):
            while (
                end - begin > size and self.followers and (word := self._word.search(text, begin + size, end))
            ):
                found.append(text[begin : word.start()])
                begin = word.start()
            if end - begin >= shortest or begin < end == len(text):
                found.append(text[begin:end])
                begin = end
        return found

    @cached_property
    def _native(self) -> Cutter | None:
        try:
            from ._native import Cutter  # noqa: PLC0415 - absent where no compiler was
        except ImportError:
            return None
        return Cutter(tokens=sorted(self.tokens), letters=letter_ranges(), followers=self.followers)

    @cached_property
    def _token(self) -> re.Pattern[str]:
        # Longest first, since the first alternative that matches wins.
        return re.compile(
            "|".join(re.escape(content) for content in sorted(self.tokens, key=len, reverse=True))
        )

    @cached_property
    def _word(self) -> re.Pattern[str]:
        return re.compile(f"(?<=[{LETTERS}])[{self.followers}]")


WHOLE = Cuts(tokens=frozenset(), followers="")
"""No cut at all."""


def proven_cuts(fields: TokenizerFields) -> Cuts:
    """Where texts of this tokenizer may be cut."""
    return Cuts(tokens=frozenset(_cut_tokens(fields.added_tokens)), followers=followers(fields))


def _cut_tokens(tokens: Iterable[AddedToken]) -> set[str]:
    """Added tokens that are found wherever they stand, whatever stands around them.

    Not so are tokens looked for in normalized text, those that take in spaces or need a word boundary, and all that can
    overlap with one of these in a text, since the match further left, or longer, then hides the other.
    """
    literal = [token for token in tokens if not token.normalized and token.content]
    needs_boundary = any(token.single_word for token in literal)
    taken = {
        token.content
        for token in literal
        if token.special
        and not (token.lstrip or token.rstrip or token.single_word)
        and not (needs_boundary and token.content[0] not in _SIGNS)
    }
    others = {token.content for token in literal} - taken
    while overlapping := _overlapping(taken, others):
        taken -= overlapping
        others |= overlapping
    return taken


def _overlapping(taken: set[str], others: set[str]) -> set[str]:
    """Those of `taken` of which a part can be a part of one of `others` in some text."""
    heads = {other[:n] for other in others for n in range(1, len(other) + 1)}
    tails = {other[n:] for other in others for n in range(len(other))}
    joined = "\0".join(others)

    def overlaps(content: str) -> bool:
        ends = range(1, len(content) + 1)
        return (
            content in joined
            or any(content[-n:] in heads or content[:n] in tails for n in ends)
            or any(content[begin:end] in others for end in ends for begin in range(end))
        )

    return {content for content in taken if overlaps(content)}
