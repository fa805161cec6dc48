"""Checks that every part of the configuration shares: texts that cannot be parsed, values that occur twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from .errors import KeyPath, Problem, path_text
from .secrets import masked_message


def malformed(path: KeyPath, text: str, parse: Callable[[str], object]) -> Iterator[Problem]:
    """Yield the problem of a text that `parse` refuses with a ValueError."""
    try:
        parse(text)
    except ValueError as error:
        yield Problem(masked_message(str(error)), path)


def repeated(values: Iterable[tuple[KeyPath, str]], noun: str) -> Iterator[Problem]:
    """Yield a problem for each value that an earlier path has too."""
    first: dict[str, KeyPath] = {}
    for path, value in values:
        if value in first:
            yield Problem(f"found {value!r}, which is also the {noun} at {path_text(first[value])}", path)
        else:
            first[value] = path
