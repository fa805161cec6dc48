"""A native encoder for byte-level BPE tokenizers: the ids of the library, at a small part of its cost.

It does what the library does, in its order: added tokens are taken out, the rest is split by regular expressions, and the
bytes of each word are merged pair by pair. What it does not know, it leaves to the library: tokenizers of other kinds,
patterns with other alternatives, and texts with characters that are rare or that a normal form may change.
Source: tokenizers 0.23 added_vocabulary.rs, pre_tokenizers/split.rs and byte_level.rs, models/bpe/word.rs.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

from .characters import NormalForm, all_of, kept, kept_marks, members, normalizer_of
from .stages import classes, native_stages, split_stages
from .tokenizer_fields import AddedToken, TokenizerFields

if TYPE_CHECKING:
    from ._native import Encoder

MAX_CLASSES = 30

_SHOWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that a vocabulary writes as the character of the same number; the others follow from U+0100 on."""

BYTES: Mapping[str, int] = {chr(byte): byte for byte in _SHOWN} | {
    chr(0x100 + place): byte for place, byte in enumerate(sorted({*range(0x100)}.difference(_SHOWN)))
}
"""Character of a vocabulary -> the byte it stands for."""


def byte_pair_encoder(fields: TokenizerFields) -> Encoder | None:
    """The native encoder of a tokenizer; None where it is of another kind, or the native part was not built.

    Cost: 1 µs a vocabulary entry, and 0.3 s the first time in a process.
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
    if len(names) > MAX_CLASSES or not BYTES.keys() <= vocabulary.keys():
        return None
    if not all(_is_found_anywhere(token, form) for token in fields.added_tokens):
        return None
    byte_tokens = (vocabulary[char] for char in sorted(BYTES, key=BYTES.__getitem__))
    merges = ((vocabulary[a], vocabulary[b], vocabulary[a + b]) for a, b in fields.model.pairs())
    return Encoder(
        known=kept(form),
        marks=kept_marks(form),
        classes=[members(name) for name in names],
        stages=native_stages(stages, names),
        byte_tokens=array("I", byte_tokens).tobytes(),
        merges=array("I", chain.from_iterable(merges)).tobytes(),
        words=_words(vocabulary) if fields.model.ignore_merges else [],
        literal=[(token.content, token.id) for token in fields.added_tokens if not token.normalized],
        normalized=[
            (_normalized(token, form), token.id) for token in fields.added_tokens if token.normalized
        ],
    )


def vocabulary_text(fields: TokenizerFields) -> str:
    """Words from all over the vocabulary of a byte-level BPE, with and without a blank between. Cost: 5 ms."""
    tokens = list(fields.model.vocabulary())
    sample = tokens[:: max(1, len(tokens) // 2000)]
    words = [
        bytes(map(BYTES.__getitem__, token)).decode(errors="replace") for token in sample if _is_word(token)
    ]
    return "".join(words) + " ".join(words)


def _is_found_anywhere(token: AddedToken, form: NormalForm | None) -> bool:
    """Whether it is found wherever it stands, and, where it is looked for in normalized text, as well in the text itself."""
    if token.lstrip or token.rstrip or token.single_word:
        return False
    return not token.normalized or set(all_of(kept(form))).issuperset(_normalized(token, form))


def _normalized(token: AddedToken, form: NormalForm | None) -> str:
    return normalizer_of(form).normalize_str(token.content) if form else token.content


def _words(vocabulary: Mapping[str, int]) -> list[tuple[bytes, int]]:
    return [
        (bytes(map(BYTES.__getitem__, token)), number)
        for token, number in vocabulary.items()
        if _is_word(token)
    ]


def _is_word(token: str) -> bool:
    """Whether it is made of bytes; tokens that were in the vocabulary before need not be."""
    return BYTES.keys() >= set(token)
