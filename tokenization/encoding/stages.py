"""The stages in which a tokenizer splits texts into words, prepared for the native splitter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tokenizers.pre_tokenizers import Digits

from .characters import all_of, known, members
from .patterns import UNBOUNDED, CharacterSet, Element, NotAhead, OneOf, alternatives, elements
from .tokenizer_fields import Component
from .word_cuts import ALTERNATIVES, KEEPS_ENDS

if TYPE_CHECKING:
    from . import _native

NUMBER = r"\p{N}"

BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The split pattern of the library's `ByteLevel`."""

_SET, _NOT_AHEAD, _ONE_OF = range(3)
"""Kinds of elements in the native extension."""


class Stage(NamedTuple):
    """One split of the text.

    Attributes:
        drops_gaps: whether text that no alternative matches is dropped.
        alternatives: the first one that matches is taken.
    """

    drops_gaps: bool
    alternatives: list[list[Element]]


def split_stages(components: Sequence[Component]) -> list[Stage] | None:
    """Return the splits of a byte-level tokenizer; None if a pre-tokenizer is not supported.

    Args:
        components: pre-tokenizers in order; the last one must convert words to bytes.
    """
    if not components:
        return None
    *splits, last = components
    match last:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": by_itself}:
            stages = [_stage(each) for each in splits]
            if by_itself:
                stages.append(
                    Stage(drops_gaps=False, alternatives=list(map(elements, alternatives(BYTE_LEVEL))))
                )
        case _:
            return None
    known = [stage for stage in stages if stage is not None]
    return known if known and len(known) == len(stages) else None


def _stage(component: Component) -> Stage | None:
    match component:
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": kind, "invert": invert}:
            parts = alternatives(pattern)
            if (kind, invert) not in KEEPS_ENDS or not ALTERNATIVES.keys() >= set(parts):
                return None
            return Stage(drops_gaps=kind == "Removed", alternatives=list(map(elements, parts)))
        case {"type": "Digits", "individual_digits": individual} if _digits_are_numbers():
            digits = CharacterSet(NUMBER, 1, 1 if individual else UNBOUNDED)
            return Stage(drops_gaps=False, alternatives=[[digits]])
        case _:
            return None


@cache
def _digits_are_numbers() -> bool:
    """Return whether the library's `Digits` splits at the same characters as the class `NUMBER`."""
    text = "a" + "a".join(all_of(known(None))) + "a"
    pieces = {piece for piece, _ in Digits(individual_digits=True).pre_tokenize_str(text)}
    return {piece for piece in pieces if len(piece) == 1} - {"a"} == set(all_of(members(NUMBER))) & set(text)


def classes(stages: Sequence[Stage]) -> list[str]:
    """Return the character classes that the stages use, each once."""
    found: dict[str, None] = {}
    for element in (element for stage in stages for parts in stage.alternatives for element in parts):
        match element:
            case OneOf(choices):
                found |= dict.fromkeys(name for choice in choices for name in choice)
            case _:
                found[element.characters] = None
    return list(found)


def native_stages(stages: Sequence[Stage], names: Sequence[str]) -> list[_native.Stage]:
    """Convert stages to the native form, with indices into `names` instead of class names."""
    bits = {name: bit for bit, name in enumerate(names)}
    return [
        (
            stage.drops_gaps,
            [[_native_element(element, bits) for element in parts] for parts in stage.alternatives],
        )
        for stage in stages
    ]


def _native_element(element: Element, bits: Mapping[str, int]) -> _native.Element:
    match element:
        case OneOf(choices, is_optional):
            return _ONE_OF, [[bits[name] for name in choice] for choice in choices], int(not is_optional)
        case NotAhead(characters):
            return _NOT_AHEAD, bits[characters], 0, 0, False
        case CharacterSet(characters, lowest, highest, is_possessive):
            return _SET, bits[characters], lowest, highest, is_possessive
