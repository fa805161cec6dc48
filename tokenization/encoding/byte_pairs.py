"""A native encoder for byte-level BPE tokenizers: the ids of the library, at a small part of its cost.

It does what the library does, in its order: added tokens are taken out, the rest is split by regular expressions, and the
bytes of each word are merged pair by pair. What it does not know, it leaves to the library: tokenizers of other kinds,
patterns with other alternatives, and texts with characters that are rare or that a normal form may change.
Source: tokenizers 0.23 added_vocabulary.rs, pre_tokenizers/split.rs and byte_level.rs, models/bpe/word.rs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tokenizers import decoders
from tokenizers.pre_tokenizers import ByteLevel

from .characters import NormalForm, all_of, inert, known, members, normalizer_of
from .segment_cache import Ids
from .stages import classes, native_stages, split_stages
from .tokenizer_fields import AddedToken, TokenizerFields

if TYPE_CHECKING:
    from ._native import Encoder

MAX_CLASSES = 30


class BytePairEncoder:
    """Encodes texts as the library does. Usable from any thread.

    Args:
        native: does so with texts in normal form.
        form: that normal form; None for no form.
        words: out of the vocabulary.

    Attributes:
        sample: a text of words out of the vocabulary, to compare both with.
    """

    def __init__(self, native: Encoder, form: NormalForm | None, words: Sequence[str]) -> None:
        self._native = native
        self._form: NormalForm | None = form
        self.sample = "".join(words) + " ".join(words)

    def encode(self, texts: Sequence[str]) -> list[Ids | None]:
        """Ids of each text; None for those that are left to the library.

        Cost: 0.05 to 0.15 µs a token, while other threads run.
        """
        found = self._native.encode(texts, normalized=self._form is None)
        if self._form is not None and None in found:
            left = [
                place
                for place, ids in enumerate(found)
                if ids is None and unicodedata.is_normalized(self._form, texts[place])
            ]
            again = self._native.encode([texts[place] for place in left], normalized=True)
            for place, ids in zip(left, again, strict=True):
                found[place] = ids
        return found


def byte_pair_encoder(fields: TokenizerFields) -> BytePairEncoder | None:
    """The native encoder of a tokenizer; None where it is of another kind, or the native part was not built.

    Cost: 2 µs a vocabulary entry, and 0.1 s the first time in a process.
    """
    try:
        from ._native import Encoder  # noqa: PLC0415 - absent where no compiler was
    except ImportError:
        return None
    stages = split_stages(fields.stages)
    forms = [normalizer["type"] for normalizer in fields.normalizers]
    if stages is None or not fields.model.is_plain_byte_pairs or forms not in ([], ["NFC"], ["NFKC"]):
        return None
    form: NormalForm | None = forms[0] if forms else None
    names = classes(stages)
    vocabulary = fields.model.vocabulary()
    if len(names) > MAX_CLASSES or not vocabulary.keys() >= set(ByteLevel.alphabet()):
        return None
    if not all(_is_found_anywhere(token, form) for token in fields.added_tokens):
        return None
    native = Encoder(
        known=known(form),
        inert=inert(form),
        classes=[members(name) for name in names],
        stages=native_stages(stages, names),
        vocabulary=vocabulary,
        merges=fields.model.pairs(),
        whole_words=fields.model.ignore_merges,
        literal=[(token.content, token.id) for token in fields.added_tokens if not token.normalized],
        normalized=[
            (_normalized(token, form), token.id) for token in fields.added_tokens if token.normalized
        ],
    )
    return BytePairEncoder(native, form, _words(vocabulary))


def _is_found_anywhere(token: AddedToken, form: NormalForm | None) -> bool:
    """Whether it is found wherever it stands, and, where it is looked for in normalized text, as well in the text itself."""
    if token.lstrip or token.rstrip or token.single_word:
        return False
    return (
        not token.normalized or form is None or set(all_of(inert(form))).issuperset(_normalized(token, form))
    )


def _normalized(token: AddedToken, form: NormalForm | None) -> str:
    return normalizer_of(form).normalize_str(token.content) if form else token.content


def _words(vocabulary: Mapping[str, int]) -> list[str]:
    """Two thousand words from all over a vocabulary."""
    tokens = list(vocabulary)[:: max(1, len(vocabulary) // 2000)]
    decoder = decoders.ByteLevel()
    return [decoder.decode([token]) for token in tokens]
