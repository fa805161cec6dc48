"""Parser for the regular expressions with which pre-tokenizers split texts.

A pattern is a list of alternatives, and an alternative is a sequence of elements. An element is a repeated character class,
a choice between short sequences of classes, or a negative lookahead. The alternatives in `word_cuts.ALTERNATIVES` consist
of these elements alone; others are not supported.
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNBOUNDED = 2**32 - 1


class CharacterSet(NamedTuple):
    """Greedy repetition of a character class, `lowest` to `highest` times; without backtracking if possessive."""

    characters: str
    lowest: int = 1
    highest: int = 1
    is_possessive: bool = False


class NotAhead(NamedTuple):
    """Negative lookahead: no character of the class follows."""

    characters: str


class OneOf(NamedTuple):
    """Choice of the first sequence of classes that leads to a match; the choice may be skipped if optional."""

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
    """Split `pattern` at each `|` outside of groups and character classes."""
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
    """Parse one alternative into its elements, in order.

    Raises:
        ValueError: it contains an unsupported element.
    """
    found: list[Element] = []
    at = 0
    while at < len(alternative):
        part = _ELEMENT.match(alternative, at)
        if part is None:
            raise ValueError(f"{alternative!r} has an unsupported element at {at}")
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
