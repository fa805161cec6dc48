"""Places at which a text can be cut into segments that, encoded one by one, give the ids of the whole text.

There are two kinds:
- Before certain added tokens. The tokenizer first searches for added tokens, leftmost and longest, and then normalizes,
  splits and encodes the text between two matches separately. Each segment begins with its added token. So the text after
  the token is not at the start of its segment, as in the whole text.
- Between words, if `word_cuts` proves that it is safe.

A cut depends only on the text before it and the character after it. So texts with a common beginning have the same
segments there, except for the last one.
Source: tokenizers added_vocabulary.rs, `extract_and_normalize`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .tokenizer_fields import AddedToken, TokenizerFields
from .word_cuts import LETTERS, followers, letter_ranges

if TYPE_CHECKING:
    from ._native import Cutter

SEGMENT_CHARS = 2048
"""A segment ends at the first proven place after this many characters, about 500 tokens. It ends before an added token if
it has at least an eighth of that, so that a single line between two messages is not a segment.

Measured with a vocabulary of 32,000: encoding a segment takes 0.6 ms; a text that grew pays this again for its last
segment. Looking up a text of 400,000 characters takes 0.4 ms.
"""

_SIGNS = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^`{|}~""")


@dataclass(frozen=True)
class Cuts:
    """The places at which texts of one tokenizer can be cut.

    Attributes:
        tokens: added tokens before which a text can be cut.
        followers: characters before which a text can be cut if a letter precedes them; empty if nothing is proven.
    """

    tokens: frozenset[str]
    followers: str

    def segments(self, text: str, size: int) -> list[str]:
        """Split `text` into non-empty segments, of about `size` characters if the text can be cut between words.

        Cost: 0.3 ns per character, 0.7 ns if some are not ASCII; 1.2 ns without the native extension.
        """
        if self._native is not None:
            try:
                return self._native.segments(text, size)
            except UnicodeEncodeError:  # a lone surrogate
                pass
        return self.segments_by_patterns(text, size)

    def segments_by_patterns(self, text: str, size: int) -> list[str]:
        """Split as `segments` does, without the native extension."""
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
            from ._native import Cutter  # noqa: PLC0415 - absent if the extension is not built
        except ImportError:
            return None
        return Cutter(tokens=sorted(self.tokens), letters=letter_ranges(), followers=self.followers)

    @cached_property
    def _token(self) -> re.Pattern[str]:
        # Longest first, since the first matching alternative is taken.
        return re.compile(
            "|".join(re.escape(content) for content in sorted(self.tokens, key=len, reverse=True))
        )

    @cached_property
    def _word(self) -> re.Pattern[str]:
        return re.compile(f"(?<=[{LETTERS}])[{self.followers}]")


WHOLE = Cuts(tokens=frozenset(), followers="")
"""No cuts: the text is one segment."""


def proven_cuts(fields: TokenizerFields) -> Cuts:
    """Return the places at which texts of this tokenizer can provably be cut."""
    return Cuts(tokens=frozenset(_cut_tokens(fields.added_tokens)), followers=followers(fields))


def _cut_tokens(tokens: Iterable[AddedToken]) -> set[str]:
    """Return the added tokens that are found in any context.

    Excluded are tokens that are searched for in normalized text, that include adjacent spaces or need a word boundary.
    Also excluded are tokens that can overlap one of these, since the leftmost or longest match hides the other.
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
    """Return the tokens of `taken` that can overlap one of `others` in some text."""
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
