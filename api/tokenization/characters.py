"""Which characters belong to which class, told by the library that splits with them.

Its regular expressions bring a Unicode version of their own, so it is asked: it splits a text of all characters by each class.
Characters that Python's own Unicode version does not know are left out, and so are those that a normal form may change.
"""

from __future__ import annotations

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
_HANGUL_PARTS = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))

NormalForm = Literal["NFC", "NFKC"]

Ranges = bytes
"""Code points as pairs of u32 in the machine's byte order: the first of a range, and the one behind its last."""


@cache
def members(characters: str) -> Ranges:
    """The characters of a class; ranges may also have code points that are not assigned.

    Args:
        characters: regular expression that matches one character.

    Cost: 10 ms, once for each class.
    """
    probes = _probes()
    split = Split(Regex(f"{characters}+"), "removed", invert=True)
    spans = (span for _, span in split.pre_tokenize_str("".join(map(chr, probes))))
    return _ranges((probes[begin], probes[end - 1] + 1) for begin, end in spans)


@cache
def kept(form: NormalForm | None) -> Ranges:
    """Assigned characters of which every text stays as it is in a normal form; None for no form.

    Cost: 50 ms, once for each form.
    """
    if form is None:
        return _ranges(_runs(_assigned()))
    return _unless_changed(
        form, (code for code in _assigned() if not _combines(code) and _stays(code, form)), ""
    )


@cache
def kept_marks(form: NormalForm | None) -> Ranges:
    """Combining marks of which a text with those of `kept` stays as it is too, as long as no two stand side by side.

    Two have an order of their own. Cost: as `kept`.
    """
    if form is None:
        return b""
    return _unless_changed(
        form, (code for code in _assigned() if _combines(code) and _stays(code, form)), "a"
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


def _unless_changed(form: NormalForm, codes: Iterable[int], between: str) -> Ranges:
    """Their ranges; none where the library's Unicode version does not keep them, with something between."""
    ranges = _ranges(_runs(codes))
    text = between.join(all_of(ranges))
    return ranges if normalizer_of(form).normalize_str(text) == text else b""


def _combines(code: int) -> bool:
    return unicodedata.combining(chr(code)) != 0


def _stays(code: int, form: NormalForm) -> bool:
    """Whether the form keeps it by itself, and it composes with nothing before it."""
    return chr(code) not in _seconds() and unicodedata.is_normalized(form, chr(code))


@cache
def _seconds() -> frozenset[str]:
    """Characters that compose with one before them."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(0x20000))
    seconds = (pair[1] for pair in pairs if len(pair) == 2 and not pair[0].startswith("<"))
    return frozenset(map(chr, chain((int(second, 16) for second in seconds), _HANGUL_PARTS)))


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
