"""The fields of a `tokenizer.json` that tell where texts may be cut."""

from __future__ import annotations

from typing import Any

import msgspec
from tokenizers import Tokenizer

Component = dict[str, Any]
"""A normalizer or pre-tokenizer as the file writes it: `type`, and fields that depend on it."""


NOTHING = msgspec.Raw(b"null")

_decode_vocabulary = msgspec.json.Decoder(dict[str, int]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[str, str]]).decode


class AddedToken(msgspec.Struct, frozen=True):
    """A token that is looked for in the text before anything else is done with it."""

    id: int
    content: str
    special: bool
    normalized: bool
    """Looked for in the normalized text, between the matches of those that are not."""
    lstrip: bool
    rstrip: bool
    single_word: bool


class ModelFields(msgspec.Struct, frozen=True):
    """What kind of model it is; fields are absent where the kind has no such thing.

    Attributes:
        vocab, merges: as in the file; of a BPE, `vocabulary` and `pairs` read them.
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
        """Whether it is a BPE that does the same with a word wherever it stands, and every time."""
        changes = self.dropout or self.continuing_subword_prefix or self.end_of_word_suffix
        return self.type == "BPE" and not changes

    def vocabulary(self) -> dict[str, int]:
        """Tokens of a BPE and their ids. Cost: 0.2 µs an entry."""
        return _decode_vocabulary(self.vocab)

    def pairs(self) -> list[tuple[str, str]]:
        """Merges of a BPE by rank. Cost: 0.2 µs a merge."""
        return _decode_pairs(self.merges)


class TokenizerFields(msgspec.Struct, frozen=True):
    """See the module. `normalizers` and `stages` are the two components as flat lists."""

    added_tokens: tuple[AddedToken, ...]
    normalizer: Component | None
    pre_tokenizer: Component | None
    model: ModelFields

    @property
    def normalizers(self) -> list[Component]:
        """Normalizers in order, sequences laid out."""
        return _flat(self.normalizer, "normalizers")

    @property
    def stages(self) -> list[Component]:
        """Pre-tokenizers in order, sequences laid out."""
        return _flat(self.pre_tokenizer, "pretokenizers")


_decode = msgspec.json.Decoder(TokenizerFields).decode


def tokenizer_fields(encoder: Tokenizer) -> TokenizerFields:
    """The fields of a loaded tokenizer. Cost: 0.5 µs a vocabulary entry."""
    return _decode(encoder.to_str())


def _flat(component: Component | None, members: str) -> list[Component]:
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [stage for member in component[members] for stage in _flat(member, members)]
