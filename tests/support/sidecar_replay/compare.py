"""Differences between a recording and what a sidecar did, in words."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from support.sidecar.json_values import as_list, as_object, is_list, is_object
from support.sidecar_replay.engines import Leg, body_bytes
from support.sidecar_replay.recordings import Json

_FRAMING = frozenset(("date", "server", "content-length", "transfer-encoding", "connection"))
_HOPS = _FRAMING | {"host", "accept-encoding", "user-agent", "keep-alive"}
_PLACEHOLDER = re.compile(r"\\\{([A-Z]+\d*)\\\}")


_BARE = re.compile(r"(?<=:)(\{ROOM\d+\})")
"""A placeholder of a number in a recorded text."""


class Names:
    """What the placeholders of a case stand for: the value that each had first."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def same(self, recorded: Any, observed: Any) -> bool:
        """Return whether a part is as recorded; placeholders that are new get their value if it is."""
        before = dict(self._values)
        if self._same(recorded, observed):
            return True
        self._values = before
        return False

    def _same(self, recorded: Any, observed: Any) -> bool:
        if is_object(recorded):
            one, other = as_object(recorded), as_object(observed)
            return (
                is_object(observed)
                and one.keys() == other.keys()
                and all(self._same(value, other[name]) for name, value in one.items())
            )
        if is_list(recorded):
            ones, others = as_list(recorded), as_list(observed)
            return is_list(observed) and len(ones) == len(others) and all(map(self._same, ones, others))
        if isinstance(recorded, str) and "{" in recorded:
            return self._is_text(recorded, str(observed))
        return bool(recorded == observed)

    def _is_text(self, recorded: str, observed: str) -> bool:
        pattern = _PLACEHOLDER.sub(r"(?P<\1>.+?)", re.escape(recorded))
        found = re.fullmatch(pattern, observed, re.DOTALL)
        if found is None:
            return False
        return all(self._values.setdefault(name, value) == value for name, value in found.groupdict().items())


def legs_differ(recorded: Sequence[Json], legs: Sequence[Leg], sent: bytes, names: Names) -> Iterator[str]:
    """Yield the differences of the requests to engines.

    Args:
        recorded: the legs of the recording, ports filled in.
        legs: what the engines got.
        sent: body of the client's request.
        names: of the case.
    """
    left = [*legs]
    for each in recorded:
        found = next((leg for leg in left if not [*_leg_differs(each, leg, sent, names)]), None)
        if found is None:
            near = [leg for leg in left if leg.to == each["to"]]
            why = "; ".join(_leg_differs(each, near[0], sent, names)) if near else "it was not sent"
            yield f"leg {each.get('step')} to {each['to']}: {why}"
            left = [leg for leg in left if not near or leg is not near[0]]
        else:
            left.remove(found)
    yield from (f"leg to {leg.to} that was not recorded: {leg.body[:200]!r}" for leg in left)


def _leg_differs(recorded: Json, leg: Leg, sent: bytes, names: Names) -> Iterator[str]:
    if leg.to != recorded["to"]:
        yield f"to {leg.to}"
        return
    for name, value in (("step", leg.step), ("method", leg.method), ("path", leg.path)):
        if name in recorded and recorded[name] != value:
            yield f"{name} {value}, not {recorded[name]}"
    if leg.is_dropped != recorded["cancelled_by_sidecar"]:
        yield f"dropped by the sidecar: {leg.is_dropped}"
    expected, found = _by_name(recorded.get("headers", ()), _HOPS), _by_name(leg.headers, _HOPS)
    if not names.same(expected, found):
        yield f"headers {found}, not {expected}"
    body = recorded.get("body", "")
    if body == "(client's bytes)":
        if leg.body != sent:
            yield f"body {leg.body[:300]!r}, not the client's"
    elif not _same_body(body, leg.body, names):
        yield f"body {leg.body[:400]!r}, not {str(body)[:400]}"


def answer_differs(recorded: Json, observed: Json, legs: Sequence[Leg], names: Names) -> Iterator[str]:
    """Yield the differences of an answer: status, headers and body, and how it ended."""
    for name in ("status", "broken"):
        if recorded.get(name) != observed.get(name):
            yield f"{name} {observed.get(name)} {observed.get('body', b'')[:200]!r}, not {recorded.get(name)}"
            return
    if recorded.get("status") is None:
        return
    body: bytes = observed["body"]
    expected, found = _by_name(recorded["headers"], _FRAMING), _by_name(observed["headers"], _FRAMING)
    if not body:
        found.pop("content-type", None)
        expected.pop("content-type", None)
    if not names.same(expected, found):
        yield f"answer's headers {found}, not {expected}"
    yield from _answer_body(recorded, body, legs, names)


def _answer_body(recorded: Json, body: bytes, legs: Sequence[Leg], names: Names) -> Iterator[str]:
    said: Any = recorded.get("sse", recorded.get("body", ""))
    passed = (
        re.fullmatch(r"\((?:bytes|events) of the (\S+) answer\)", said) if isinstance(said, str) else None
    )
    if passed is not None:
        sent = [leg.sent for leg in legs if leg.to == passed[1] and leg.sent]
        if body not in sent:
            yield f"answer {body[:300]!r}, not {sent}"
        return
    if "sse" in recorded:
        events = "".join(each["event"] for each in as_list(said)) + recorded.get("rest", "")
        if not names.same(_lines(events), _lines(body.decode())):
            yield f"events {body.decode()[:600]!r}, not {events[:600]!r}"
        return
    if as_object(said).get("object") == "error":
        # The words are those of the reference's libraries.
        observed = as_object(json.loads(body))
        if any(as_object(said)[name] != observed.get(name) for name in ("object", "type", "code")):
            yield f"error {observed}, not {said}"
        return
    if not _same_body(said, body, names):
        yield f"answer {body[:400]!r}, not {str(said)[:400]}"


def _lines(events: str) -> list[Any]:
    return [_parsed(line.removeprefix("data: ")) for line in events.split("\n")]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _same_body(recorded: object, observed: bytes, names: Names) -> bool:
    text = _BARE.sub(r'"\1"', body_bytes(recorded).decode())
    return names.same(_lines(text), _lines(observed.decode("utf-8", "replace")))


def _by_name(headers: Iterable[Sequence[str]], left_out: frozenset[str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in headers:
        if name.lower() not in left_out:
            found[name.lower()].append(value)
    return dict(found)
