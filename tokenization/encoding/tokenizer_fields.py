"""The fields of a `tokenizer.json` that determine how it splits and merges text."""

from __future__ import annotations

from typing import Any

import msgspec
from tokenizers import Tokenizer

Component = dict[str, Any]
"""A normalizer or pre-tokenizer as in the file: `type`, and fields that depend on it."""


NOTHING = msgspec.Raw(b"null")

_decode_vocabulary = msgspec.json.Decoder(dict[str, int]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[str, str]]).decode


class AddedToken(msgspec.Struct, frozen=True):
    """A token that the tokenizer extracts from the text before it splits the rest."""

    id: int
    content: str
    special: bool
    normalized: bool
    """Searched for in the normalized text, between the matches of the tokens that are not."""
    lstrip: bool
    rstrip: bool
    single_word: bool


class ModelFields(msgspec.Struct, frozen=True):
    """The tokenizer's model; its fields depend on the type, and have defaults if absent.

    Attributes:
        vocab, merges: undecoded; `vocabulary` and `pairs` decode those of a BPE.
    """

    type: str = ""
    dropout: float | None = None
    ignore_merges: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    vocab: msgspec.Raw = NOTHING
    merges: msgspec.Raw = NOTHING

    @property
    def is_plain_byte_pairs(self) -> bool:
        """Whether it is a BPE that always encodes the same word alike, at any position."""
        changes = self.dropout or self.continuing_subword_prefix or self.end_of_word_suffix
        return self.type == "BPE" and not changes

    def vocabulary(self) -> dict[str, int]:
        """Decode the tokens of a BPE and their ids. Cost: 0.2 µs per entry."""
        return _decode_vocabulary(self.vocab)

    def pairs(self) -> list[tuple[str, str]]:
        """Decode the merges of a BPE, in order of rank. Cost: 0.2 µs per merge."""
        return _decode_pairs(self.merges)


class TokenizerFields(msgspec.Struct, frozen=True):
    """The needed fields of a `tokenizer.json`."""

    added_tokens: tuple[AddedToken, ...]
    normalizer: Component | None
    pre_tokenizer: Component | None
    model: ModelFields

    @property
    def normalizers(self) -> list[Component]:
        """The normalizers in order, with sequences flattened."""
        return _flat(self.normalizer, "normalizers")

    @property
    def stages(self) -> list[Component]:
        """The pre-tokenizers in order, with sequences flattened."""
        return _flat(self.pre_tokenizer, "pretokenizers")


_decode = msgspec.json.Decoder(TokenizerFields).decode


def tokenizer_fields(encoder: Tokenizer) -> TokenizerFields:
    """Read the fields of a loaded tokenizer. Cost: 0.5 µs per vocabulary entry."""
    return _decode(encoder.to_str())


def _flat(component: Component | None, members: str) -> list[Component]:
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [stage for member in component[members] for stage in _flat(member, members)]
