"""Lookup of single series in a Prometheus text body, without parsing the rest.

An engine's body has hundreds of series, and a scrape needs three, twenty times a second. A byte search for a name at the
start of a line costs about a hundredth of parsing every line. A lookup near the former position costs almost nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import ScrapeError

MAX_HITS = 10_000
"""Limit of lines that begin with a name, longer names included: enough for three series of each of 1024 ranks."""

MAX_LINE_BYTES = 65_536
"""Longest line accepted of a wanted series; vLLM's longest has about 1.5 kB."""

NEAR_BYTES = 2048
"""Distance that lines may move between two bodies and still be found without a search; numbers can grow by digits."""

MAX_DIGITS = 15
"""Most digits of a number in a label."""

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
        """Parse the labels, name -> value, escapes resolved. Not cached, since most samples need none."""
        return {match[1].decode(): _unescape(match[2][1:-1]) for match in _LABEL.finditer(self.label_block)}


class Exposition:
    """A body in the Prometheus text format 0.0.4, with lookup of series by name."""

    def __init__(self, body: bytes) -> None:
        self._text = b"\n" + body

    def samples(self, name: str) -> list[Sample]:
        """Return every sample of the series called exactly `name`, in the order of the body.

        Raises:
            ScrapeError: a line is malformed or too long, or there are too many.
        Cost: one search of the body, plus O(length) per matching line.
        """
        return [self.sample(name, place) for place in self.places(name)]

    def places(self, name: str) -> list[int]:
        """Return the positions of the lines of the series, in the order of the body; `sample` takes them.

        A name is searched at the start of a line, where every client library writes it. Help texts and label values
        cannot contain unescaped line breaks.

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
        """Return as `places` one run of lines that begins close to position `near`, or nothing.

        Cost: O(lines of the run).
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
        """Return the sample of the series `name` at a position. A timestamp after the value is ignored.

        Raises:
            ScrapeError: the line is malformed or too long.
        """
        return _sample(name, self._text, place)


class Bookmark:
    """Lookup of one series in successive bodies of one server, near its former position.

    Args:
        name: name of the series.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._place: int | None = None
        self._count = 0

    def samples(self, exposition: Exposition) -> list[Sample]:
        """Return the same as `Exposition.samples`; call it once per body.

        The format requires the lines of a series to stand in one group. If the group near the former position has as many
        lines as before, it is complete. Otherwise the body is searched.

        Cost: O(lines), plus a search of the body if lines have moved far, or their number changed, or there are none.
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
            raise ScrapeError("malformed", f"labels of {name} are malformed")
        block, rest = match[0], rest[match.end() :]
    value = rest.split(maxsplit=1)[0] if rest else b""
    if b"_" in value:  # float() accepts a digit separator, the format does not
        raise ScrapeError("malformed", f"value of {name} is no number")
    try:
        return Sample(block, float(value))
    except ValueError:
        raise ScrapeError("malformed", f"value of {name} is no number") from None


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)
    return value.decode(errors="replace")
