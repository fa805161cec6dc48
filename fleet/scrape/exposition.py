"""Single series out of a Prometheus text body, without reading the rest.

An engine's body has hundreds of series and a scrape needs three, twenty times a second. Searching the bytes for a name
at the start of a line costs about a hundredth of parsing every line, and looking where it was before next to nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import ScrapeError

MAX_HITS = 10_000
"""Lines that may begin with a name, longer names included: three series for each of 1024 data-parallel ranks fit."""

MAX_LINE_BYTES = 65_536
"""Longest line of a wanted series; vLLM's longest has about 1.5 kB."""

NEAR_BYTES = 2048
"""How far lines may move between two bodies and still be found without a search: numbers grow by a digit now and then."""

_AFTER_NAME = (b"{", b" ", b"\t")
_VALUE = rb'"(?:[^"\\]|\\.)*+"'
_LABEL = re.compile(rb"([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*(" + _VALUE + rb")[ \t]*")
_LABEL_BLOCK = re.compile(rb"\{[ \t]*(?:" + _LABEL.pattern + rb"(?:,[ \t]*|(?=\})))*+\}")
_ESCAPE = re.compile(rb'\\([\\"n])')


@dataclass(frozen=True, slots=True)
class Sample:
    """One series and its value.

    Attributes:
        label_block: `{name="value",...}` as sent, empty without labels.
        value: may be infinite or not a number.
    """

    label_block: bytes
    value: float

    def labels(self) -> dict[str, str]:
        """Label name -> value, escapes resolved. Parsed at each call, since most samples are never asked."""
        return {match[1].decode(): _unescape(match[2][1:-1]) for match in _LABEL.finditer(self.label_block)}


class Exposition:
    """A body in the Prometheus text format 0.0.4, in which series can be looked up by name."""

    def __init__(self, body: bytes) -> None:
        self._text = b"\n" + body

    def samples(self, name: str) -> list[Sample]:
        """Every sample of the series called exactly `name`, in the body's order.

        Raises:
            ScrapeError: such a line cannot be read, is too long, or there are too many.
        Cost: one search of the body, plus O(length) a matching line.
        """
        return [self.sample(name, place) for place in self.places(name)]

    def places(self, name: str) -> list[int]:
        """Where the lines of the series are, in the body's order; each place is for `sample`.

        A name is looked for at the start of a line, where every client library writes it; neither help texts nor label
        values can hold a line break that is not escaped.

        Raises:
            ScrapeError: there are too many.
        Cost: one search of the body.
        """
        text, needle = self._text, b"\n" + name.encode()
        found: list[int] = []
        start = text.find(needle)
        for _ in range(MAX_HITS):
            if start < 0:
                return found
            after_name = start + len(needle)
            if text[after_name : after_name + 1] in _AFTER_NAME:
                found.append(after_name)
            start = text.find(needle, after_name)
        raise ScrapeError("malformed", f"more than {MAX_HITS} lines begin with {name}")

    def group(self, name: str, *, near: int) -> list[int]:
        """As `places`, but of one run of lines and only where it begins close to place `near`; else nothing.

        Cost: O(lines), not of the body.
        """
        text, needle = self._text, b"\n" + name.encode()
        found: list[int] = []
        start = text.find(needle, max(0, near - NEAR_BYTES), near + NEAR_BYTES)
        while start >= 0 and text.startswith(needle, start):
            after_name = start + len(needle)
            if text[after_name : after_name + 1] not in _AFTER_NAME:
                break
            found.append(after_name)
            start = text.find(b"\n", after_name)
        return found

    def sample(self, name: str, place: int) -> Sample:
        """The sample of the series `name` whose line is at `place`. A timestamp after the value is passed over.

        Raises:
            ScrapeError: the line cannot be read, or is too long.
        """
        return _sample(name, self._text, place)


class Bookmark:
    """Finds one series in the bodies of one server, which stays near where it was in the body before.

    Args:
        name: of the series.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._place: int | None = None
        self._count = 0

    def samples(self, exposition: Exposition) -> list[Sample]:
        """As `Exposition.samples`, of each body in turn.

        Where as many lines stand together as there were in the last body that was searched, these are all: the format
        wants the lines of a series in one group. Any other number has the body searched again.

        Cost: O(lines), and a search of the body when lines have moved far or come or gone, or there are none.
        """
        name = self._name
        places = [] if self._place is None else exposition.group(name, near=self._place)
        if len(places) != self._count or not places:
            places = exposition.places(name)
        self._count = len(places)
        self._place = places[0] if places else None
        return [exposition.sample(name, place) for place in places]


def _sample(name: str, text: bytes, start: int) -> Sample:
    end = text.find(b"\n", start)
    if end < 0:
        end = len(text)
    if end - start > MAX_LINE_BYTES:
        raise ScrapeError("malformed", f"a line of {name} has {end - start} bytes, limit {MAX_LINE_BYTES}")
    rest = text[start:end].strip()
    block = b""
    if rest.startswith(b"{"):
        match = _LABEL_BLOCK.match(rest)
        if match is None:
            raise ScrapeError("malformed", f"labels of {name} cannot be read")
        block, rest = match[0], rest[match.end() :]
    value = rest.split(maxsplit=1)[0] if rest else b""
    if b"_" in value:  # Python's digit separator is no part of the format
        raise ScrapeError("malformed", f"value of {name} is no number")
    try:
        return Sample(block, float(value))
    except ValueError:
        raise ScrapeError("malformed", f"value of {name} is no number") from None


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)
    return value.decode(errors="replace")
