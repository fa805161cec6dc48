"""The regular expressions that pre-tokenizers split texts with, taken apart.

A pattern is a list of alternatives; an alternative is a sequence of elements, each a class of characters a number of times,
a choice between short sequences of classes, or a look at what follows. That is all there is in the alternatives that
`word_cuts.ALTERNATIVES` lists, and nothing else is read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNBOUNDED = 2**32 - 1


class CharacterSet(NamedTuple):
    """Characters of one class, `lowest` to `highest` of them, as many as there are; never fewer again if possessive."""

    characters: str
    lowest: int = 1
    highest: int = 1
    is_possessive: bool = False


class NotAhead(NamedTuple):
    """No character of the class follows."""

    characters: str


class OneOf(NamedTuple):
    """The first of the sequences of classes that leads to a match; none of them is needed if optional."""

    choices: tuple[tuple[str, ...], ...]
    is_optional: bool = False


Element = CharacterSet | NotAhead | OneOf

_PART = re.compile(r"\\.|.", re.DOTALL)
_CLASS = r"\\p\{\w+\}|\\[rnsSd]|\\\W|\[(?:\\.|[^\]\\])+\]|[^()\[\]{}|?*+\\^$.]"
_COUNTS = {"": (1, 1), "?": (0, 1), "*": (0, UNBOUNDED), "+": (1, UNBOUNDED)}
_ELEMENT = re.compile(
    rf"\(\?!(?P<behind>{_CLASS})\)"
    r"|\(\?i:(?P<choices>[^()]+)\)(?P<optional>\??)"
    rf"|(?P<set>{_CLASS})(?:\{{(?P<low>\d+)(?:,(?P<high>\d+))?\}}|(?P<count>[?*+]?)(?P<possessive>\+?))"
)


def alternatives(pattern: str) -> list[str]:
    """`pattern` cut at the `|` that stand in no group and no character class."""
    found, depth, in_class = [""], 0, False
    for part in _PART.findall(pattern.replace("\r", r"\r").replace("\n", r"\n")):
        if in_class:
            in_class = part != "]"
        elif part == "[":
            in_class = True
        else:
            depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and not in_class and depth == 0:
            found.append("")
        else:
            found[-1] += part
    return found


def elements(alternative: str) -> list[Element]:
    """The elements of one alternative, in order.

    Raises:
        ValueError: it has something else in it.
    """
    found: list[Element] = []
    at = 0
    while at < len(alternative):
        part = _ELEMENT.match(alternative, at)
        if part is None:
            raise ValueError(f"{alternative!r} has an element that is not known at {at}")
        found.append(_element(part))
        at = part.end()
    return found


def _element(part: re.Match[str]) -> Element:
    if behind := part["behind"]:
        return NotAhead(behind)
    if choices := part["choices"]:
        return OneOf(tuple(map(_letters_of_any_case, choices.split("|"))), part["optional"] == "?")
    if part["low"]:
        low = int(part["low"])
        return CharacterSet(part["set"], low, int(part["high"] or low))
    return CharacterSet(part["set"], *_COUNTS[part["count"]], part["possessive"] == "+")


def _letters_of_any_case(choice: str) -> tuple[str, ...]:
    return tuple(f"(?i:{characters})" for characters in re.findall(_CLASS, choice))
