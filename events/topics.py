"""Topics of publishers that connect to us, `kv@ENDPOINT@MODEL`, and the endpoint each one names.

ENDPOINT is a host with or without its serving port, or the endpoint's name; the model may contain `@`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from .errors import TopicError

_SEPARATOR = "@"
_MAX_PORT = 65535


class Topic(NamedTuple):
    """The parts of a topic: ENDPOINT as written, and the model, empty when the topic has none."""

    endpoint: str
    model: str


class _Place(NamedTuple):
    """One way to read an ENDPOINT: host in its one form for comparing, and port, None when it has none."""

    host: str
    port: int | None


def parse_topic(topic: bytes) -> Topic:
    """The parts of `PREFIX@ENDPOINT[@MODEL]`; the prefix is whatever the engines were told, without `@`.

    Raises:
        TopicError: not UTF-8, or without an ENDPOINT (`not_a_topic`).
    """
    try:
        parts = topic.decode().split(_SEPARATOR, 2)
    except UnicodeDecodeError:
        parts = []
    if len(parts) < 2 or not parts[1]:
        raise TopicError("not_a_topic", "it is not of the form kv@ENDPOINT@MODEL")
    return Topic(parts[1], parts[2] if len(parts) > 2 else "")


class TopicDirectory:
    """Finds the endpoint that a topic means.

    In this order: the endpoint of that name, the one that serves at that host and port, and for a host without port
    the only one on that host.
    """

    def __init__(self) -> None:
        self._serving: dict[str, str] = {}
        self._at: dict[_Place, set[str]] = {}

    def add(self, name: str, serving: str) -> None:
        """Register an endpoint.

        Args:
            name: unique name.
            serving: `HOST:PORT`, brackets around IPv6.
        """
        self._serving[name] = serving
        for place in _places_of(serving):
            self._at.setdefault(place, set()).add(name)

    def remove(self, name: str) -> None:
        """Forget an endpoint."""
        for place in _places_of(self._serving.pop(name)):
            self._at[place].discard(name)
            if not self._at[place]:
                del self._at[place]

    def find(self, topic: bytes) -> str:
        """Name of the endpoint that publishes under `topic`.

        Raises:
            TopicError: `not_a_topic`, `unknown_endpoint`, or `ambiguous_host` when several endpoints fit.
        Cost: O(length of the topic).
        """
        written = parse_topic(topic).endpoint
        if written in self._serving:
            return written
        found: set[str] = set()
        for place in _readings(written):
            found |= self._at.get(place, set())
        if not found:
            raise TopicError("unknown_endpoint", f"no endpoint is named {written!r} or serves there")
        if len(found) > 1:
            names = ", ".join(sorted(found))
            raise TopicError("ambiguous_host", f"{written!r} may mean {names}; name the serving port too")
        return found.pop()


def _places_of(serving: str) -> Iterator[_Place]:
    """The places at which an endpoint that serves at `HOST:PORT` is looked up."""
    host, _, port = serving.rpartition(":")
    host = _ipv6(host.strip("[]")) or host.lower()
    yield _Place(host, int(port))
    yield _Place(host, None)


def _readings(written: str) -> Iterator[_Place]:
    """What ENDPOINT may mean: one thing, but for IPv6 without brackets, whose last group may be a port."""
    whole = _ipv6(written.strip("[]"))
    if whole is not None:
        yield _Place(whole, None)
    host, colon, digits = written.rpartition(":")
    if not colon:
        yield _Place(written.lower(), None)
    elif digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= _MAX_PORT:
        yield _Place(_ipv6(host.strip("[]")) or host.lower(), int(digits))


def _ipv6(text: str) -> str | None:
    """The address in its one written form, None when it is none."""
    with suppress(ipaddress.AddressValueError):
        return str(ipaddress.IPv6Address(text))
    return None
