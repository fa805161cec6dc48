"""Which characters belong to which class, told by the library that splits with them.

Its regular expressions bring a Unicode version of their own, so it is asked: it splits a text of all characters by each class.
Characters that Python's own Unicode version does not know are left out, and so are those that a normal form may change.
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

CHARACTERS = tuple(chain(range(0x10000), range(0x1F000, 0x1FC00)))
"""Code points looked at: the basic plane, and symbols such as emoji."""

UNIFORM = (range(0x3400, 0x4DB6), range(0x4E00, 0x9FA6), range(0xAC00, 0xD7A4))
"""Ideographs and Hangul syllables: as good as all texts' letters without case; some of each stand for all, to save time."""

_STRIDE = 512
_ANY_CASE = "(?i:[a-z'])"
"""What patterns ask for without regard to case."""
_OF_ANY_CASE = re.compile(r"\(\?i:([a-z']|\[[a-z']{2,5}\])\)")
"""One of them, or a few; not the class of all."""

_HANGUL_PARTS = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))

NormalForm = Literal["NFC", "NFKC"]

SEPARATOR = "\n"
"""Stands alone in every form."""

Ranges = bytes
"""Code points as pairs of u32 in the machine's byte order: the first of a range, and the one behind its last."""


@cache
def members(characters: str) -> Ranges:
    """The characters of a class; ranges may also have code points that are not assigned.

    Args:
        characters: regular expression that matches one character.

    Cost: 10 ms, once for each class; nothing to speak of for one character, with its case or without.
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
    """Characters that Python's Unicode version has, and that the library brings into the same form as Python.

    By itself, and where it composes with another one; its version may be older. Cost: 70 ms, once for each form.
    """
    return _ranges(_runs(_assigned() if form is None else _agreed(form)))


@cache
def inert(form: NormalForm | None) -> Ranges:
    """Known characters of which every text is in a normal form; None for no form. Cost: 50 ms, once for each form."""
    return (
        known(None)
        if form is None
        else _ranges(_runs(code for code in _agreed(form) if _is_inert(chr(code), form)))
    )


def normalizer_of(form: NormalForm) -> Normalizer:
    """What the library brings texts into the form with."""
    return normalizers.NFC() if form == "NFC" else normalizers.NFKC()


def all_of(ranges: Ranges) -> str:
    """The characters of `ranges`, in order."""
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
    return [code for code in _assigned() if code not in differing]


def _is_inert(char: str, form: NormalForm) -> bool:
    """Whether it is a starter that the form keeps, and that composes with nothing before it."""
    return (
        not unicodedata.combining(char) and char not in _seconds() and unicodedata.is_normalized(form, char)
    )


@cache
def _pairs() -> Sequence[str]:
    """Pairs of characters that have a composed form."""
    found = (unicodedata.decomposition(chr(code)).split() for code in CHARACTERS)
    return [
        "".join(chr(int(part, 16)) for part in parts)
        for parts in found
        if len(parts) == 2 and parts[0][0] != "<"
    ]


@cache
def _seconds() -> frozenset[str]:
    """Characters that compose with one before them."""
    return frozenset(pair[1] for pair in _pairs()) | set(map(chr, _HANGUL_PARTS))


@cache
def _assigned() -> Sequence[int]:
    return [code for code in CHARACTERS if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]


@cache
def _probes() -> Sequence[int]:
    """Assigned characters, of the uniform ranges the ends and a few between."""
    inside = {code for uniform in UNIFORM for code in uniform} - {
        code for uniform in UNIFORM for code in (*uniform[::_STRIDE], uniform[-1])
    }
    return [code for code in _assigned() if code not in inside]


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
