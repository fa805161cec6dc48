"""Places between words at which a text can be cut so that its parts, encoded one by one, give the ids of the whole.

A cut is after a letter and before a space or line feed, and needs two proofs.

1. No token spans the cut. There are two cases. Either a pre-tokenizer always ends a word there; then the model does not
matter. Or the model is a BPE over the whole text, and its vocabulary has spaces and line feeds only in runs or at the start
of tokens. Then no merge joins a letter with a following space, and merges on one side do not depend on the other side.

2. No earlier stage depends on the cut. The regular expressions of the pre-tokenizers consist of known alternatives
(`ALTERNATIVES`): none matches a letter directly followed by a space or line feed, none looks back, and none looks ahead
after a letter. Unicode normal forms do not cross a space, since a space does not compose with the character before it. Other
normalizers, such as those that strip or prepend, are not supported. No added token contains a letter followed by a space,
nor includes spaces after a letter.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Collection, Mapping
from itertools import chain

from .patterns import alternatives
from .tokenizer_fields import AddedToken, Component, TokenizerFields

LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u013e\u0141-\u024f"  # Latin
    "\u0391-\u03a1\u03a3-\u03c9\u0410-\u044f"  # Greek, Cyrillic
    "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a"  # Hebrew, Arabic
    "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"  # kana, ideographs, Hangul
)
"""Character class of characters that are letters since Unicode 5, and end in a letter in all supported normal forms."""

_ALL = frozenset({"upper", "other"})
_UPPER, _OTHER, _NONE = frozenset({"upper"}), frozenset({"other"}), frozenset[str]()

ALTERNATIVES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys((r" ?\p{L}+", r"\s?\p{L}+", r"\p{L}+"), _ALL),
    **dict.fromkeys((r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+"), _ALL),
    **dict.fromkeys((r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"), _ALL),
    **{
        rf"[^\r\n\p{{L}}\p{{N}}]?{letters}{suffix}": matched
        for letters, matched in (
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+", _OTHER),
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*", _UPPER),
        )
        for suffix in ("", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
    },
    **dict.fromkeys(("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"), _NONE),
    **dict.fromkeys((r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'(?i:[sdmt]|ll|ve|re)"), _NONE),
    **dict.fromkeys((r"\p{N}", r"\p{N}{1}", r"\p{N}{1,2}", r"\p{N}{1,3}", r"\p{N}+", r" ?\p{N}+"), _NONE),
    **dict.fromkeys(("[0-9]", "[0-9]+", "[0-9][0-9][0-9]", r"\d", r"\d{1,3}", r"\d+"), _NONE),
    **dict.fromkeys((r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}\r\n]+", r"\s?\p{P}+"), _NONE),
    **dict.fromkeys((r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*"), _NONE),
    **dict.fromkeys((r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"), _NONE),
    **dict.fromkeys((r" ?[\p{P}\p{S}]+", r" ?[\p{P}\p{S}]+[\r\n]*"), _NONE),
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""": _NONE,
    **dict.fromkeys(("[一-龥\u3040-\u309f\u30a0-\u30ff]+", "[一-龥ࠀ-一가-퟿]+"), _NONE),
    **dict.fromkeys((r"[\r\n]", r"\s*[\r\n]", r"\s*[\r\n]+", r"\s*[\r\n/]+", r"\s+(?!\S)", r"\s+"), _NONE),
}
"""Alternatives of common split patterns -> the letters that each alternative matches alone, in any context.

Source: tokenizer.json of GPT-2, Llama 3, Qwen 2 to 3.5, GLM 4, DeepSeek, gpt-oss, Mistral, SmolLM, StarCoder and Falcon.
"""

UNICODE_FORMS = frozenset({"NFC", "NFKC"})
KEEPS_ENDS = frozenset({("Isolated", False), ("Removed", True)})
"""Behaviors of a split, with `invert`, that keep a boundary at both ends of each match."""

_PAIR = re.compile(r"[^\s▁][\s▁]")


def letter_ranges() -> bytes:
    """Return `LETTERS` as pairs of u32: the first code point of a range, and the one after its last."""
    bounds = ((ord(first), ord(last) + 1) for first, last in re.findall("(.)-(.)", LETTERS))
    return array("I", chain.from_iterable(bounds)).tobytes()


def followers(fields: TokenizerFields) -> str:
    """Return the characters before which a text can be cut if a letter precedes them; empty if nothing is proven."""
    if not all(map(_is_harmless, fields.added_tokens)):
        return ""
    return _by_pre_tokenizer(fields) or _by_vocabulary(fields)


def _by_pre_tokenizer(fields: TokenizerFields) -> str:
    """Return the characters with which a pre-tokenizer always begins a new word after a letter."""
    if not UNICODE_FORMS.issuperset(normalizer["type"] for normalizer in fields.normalizers):
        return ""
    followers, always = " \n", False
    for stage in fields.stages:
        match stage:
            case {"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": splits} if splits or always:
                always = True
                if prefix:  # the prefix is added before a line feed, but not before a space
                    followers = " "
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": kind, "invert": invert}:
                matched = _letters_matched(pattern)
                if matched is None or (kind, invert) not in KEEPS_ENDS:
                    return ""
                always = always or matched == _ALL
            case {"type": "Digits"} | {"type": "Punctuation", "behavior": "Isolated" | "Contiguous"}:
                pass
            case {"type": "Metaspace", "split": True}:
                followers, always = " ", True
            case _:
                return ""
    return followers if always else ""


def _letters_matched(pattern: str) -> frozenset[str] | None:
    """Return the letters that always belong to a match; None for a pattern with an unknown alternative."""
    parts = alternatives(pattern)
    if not all(part in ALTERNATIVES for part in parts):
        return None
    return frozenset[str]().union(*(ALTERNATIVES[part] for part in parts))


def _by_vocabulary(fields: TokenizerFields) -> str:
    """Return the characters that, in a BPE over the whole text, no token has after another character."""
    if not fields.model.is_plain_byte_pairs or fields.model.ignore_merges:
        return ""
    match fields.normalizers, fields.stages:
        case [], [{"type": "Metaspace", "replacement": space, "split": False}]:
            symbols = {" ": space}  # before a line feed, a space would be inserted
        case [{"type": "Replace", "pattern": {"String": " "}, "content": space}], stages if _do_nothing(
            stages
        ):
            symbols = {" ": space, "\n": "\n"}
        case _:
            return ""
    tokens = fields.model.vocabulary()
    return "".join(
        follower
        for follower, symbol in symbols.items()
        if symbol in tokens and not _stands_behind(symbol, tokens)
    )


def _do_nothing(stages: list[Component]) -> bool:
    """Return whether the stages split only at spaces, all of which the normalizer has replaced."""
    return all(stage["type"] == "Split" and stage["pattern"] == {"String": " "} for stage in stages)


def _stands_behind(symbol: str, vocabulary: Collection[str]) -> bool:
    behind = re.compile(f"[^{re.escape(symbol)}]{re.escape(symbol)}")
    return any(behind.search(token) for token in vocabulary)


def _is_harmless(token: AddedToken) -> bool:
    if any(_PAIR.search(text) for text in (token.content, unicodedata.normalize("NFKC", token.content))):
        return False
    return not token.single_word and not (token.rstrip and re.search(f"[{LETTERS}]$", token.content))
