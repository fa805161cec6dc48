"""Character classes, as the tokenizers library defines them.

The library's regular expressions have their own Unicode version. So the members of a class are found by letting the library
split a text of all characters by this class. Characters that Python's Unicode version does not have are left out, and so
are characters that a normal form may change.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Literal

from tokenizers import Regex, normalizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import Split

CHARACTERS = array("I", chain(range(0x10000), range(0x1F000, 0x1FC00)))
"""Supported code points: the basic plane, and symbols such as emoji."""

UNIFORM = (range(0x3400, 0x4DB6), range(0x4E00, 0x9FA6), range(0xAC00, 0xD7A4))
"""Ranges of ideographs and Hangul syllables, all letters without case. To save time, only samples of each are tested."""

_STRIDE = 512
_ANY_CASE = "(?i:[a-z'])"
"""Class of all characters that patterns match case-insensitively."""
_OF_ANY_CASE = re.compile(r"\(\?i:([a-z']|\[[a-z']{2,5}\])\)")
"""A case-insensitive class of one or a few characters, but not the class of all."""

_HANGUL_PARTS = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))

NormalForm = Literal["NFC", "NFKC"]

SEPARATOR = "\n"
"""A character that composes with no other one in any normal form."""

Ranges = bytes
"""Ranges of code points as pairs of u32 in the machine's byte order: the first code point, and the one after the last."""


@cache
def members(characters: str) -> Ranges:
    """Return the characters of a class; the ranges may include unassigned code points.

    Args:
        characters: regular expression that matches one character.

    Cost: 10 ms, once per class; negligible for a single character, case-sensitive or not.
    """
    if len(characters) == 1:
        return _ranges([(ord(characters), ord(characters) + 1)])
    few = all_of(members(_ANY_CASE)) if _OF_ANY_CASE.fullmatch(characters) else ""
    probes = list(map(ord, few)) or _probes()
    split = Split(Regex(f"{characters}+"), "removed", invert=True)
    spans = (span for _, span in split.pre_tokenize_str("".join(map(chr, probes))))
    return _ranges((probes[begin], probes[end - 1] + 1) for begin, end in spans)


@cache
def known(form: NormalForm | None) -> Ranges:
    """Return the assigned characters that Python and the library normalize alike, alone and in compositions.

    The library's Unicode version may be older. Cost: 70 ms, once per form.
    """
    return _ranges(_runs(_assigned() if form is None else _agreed(form)))


@cache
def inert(form: NormalForm | None) -> Ranges:
    """Return the known characters with this property: a text of these alone is always in the form. None is no form.

    Cost: 50 ms, once per form.
    """
    return (
        known(None)
        if form is None
        else _ranges(_runs(code for code in _agreed(form) if _is_inert(chr(code), form)))
    )


def normalizer_of(form: NormalForm) -> Normalizer:
    """Return the library's normalizer for a form."""
    return normalizers.NFC() if form == "NFC" else normalizers.NFKC()


def all_of(ranges: Ranges) -> str:
    """Return the characters of `ranges`, in order."""
    bounds = array("I", ranges)
    return "".join(
        chr(code) for begin, end in zip(bounds[::2], bounds[1::2], strict=True) for code in range(begin, end)
    )


@cache
def _agreed(form: NormalForm) -> Sequence[int]:
    texts = [text for text in (*map(chr, _assigned()), *_pairs()) if text != SEPARATOR]
    joined = SEPARATOR.join(texts)
    ours, theirs = unicodedata.normalize(form, joined), normalizer_of(form).normalize_str(joined)
    results = zip(texts, ours.split(SEPARATOR), theirs.split(SEPARATOR), strict=True)
    differing = {ord(char) for text, one, other in results if one != other for char in text}
    return array("I", (code for code in _assigned() if code not in differing))


def _is_inert(char: str, form: NormalForm) -> bool:
    """Return whether a character is a starter that the form keeps, and that composes with no preceding character."""
    return (
        not unicodedata.combining(char) and char not in _seconds() and unicodedata.is_normalized(form, char)
    )


@cache
def _pairs() -> Sequence[str]:
    """Return the pairs of characters that have a composed form."""
    found = (unicodedata.decomposition(chr(code)).split() for code in CHARACTERS)
    return [
        "".join(chr(int(part, 16)) for part in parts)
        for parts in found
        if len(parts) == 2 and parts[0][0] != "<"
    ]


@cache
def _seconds() -> frozenset[str]:
    """Return the characters that compose with a preceding character."""
    return frozenset(pair[1] for pair in _pairs()) | set(map(chr, _HANGUL_PARTS))


@cache
def _assigned() -> Sequence[int]:
    return array(
        "I", (code for code in CHARACTERS if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co"))
    )


@cache
def _probes() -> Sequence[int]:
    """Return the assigned characters, but only samples of the uniform ranges."""
    inside = {code for uniform in UNIFORM for code in uniform} - {
        code for uniform in UNIFORM for code in (*uniform[::_STRIDE], uniform[-1])
    }
    return array("I", (code for code in _assigned() if code not in inside))


def _runs(codes: Iterable[int]) -> Iterator[tuple[int, int]]:
    begin = end = -1
    for code in codes:
        if code != end:
            if begin >= 0:
                yield begin, end
            begin = code
        end = code + 1
    if begin >= 0:
        yield begin, end


def _ranges(runs: Iterable[tuple[int, int]]) -> Ranges:
    return array("I", chain.from_iterable(runs)).tobytes()
