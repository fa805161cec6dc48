"""Topics of publishers that connect to kvatlas, `kv@ENDPOINT@MODEL`, and the endpoint that each one names.

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

MAX_TOPIC_BYTES = 4096
"""Longer topics are refused; the longest path that can name a model is as long."""

SHOWN_TOPIC_BYTES = 200


class Topic(NamedTuple):
    """The parts of a topic: ENDPOINT as written, and the model, empty if the topic has none."""

    endpoint: str
    model: str


class _HostPort(NamedTuple):
    """One reading of an ENDPOINT: normalized host, and port, None if it has none."""

    host: str
    port: int | None


def parse_topic(topic: bytes) -> Topic:
    """Split `PREFIX@ENDPOINT[@MODEL]`; the prefix is any text without `@` that the engines are configured with.

    Raises:
        TopicError: too long, not UTF-8, or without an ENDPOINT (`not_a_topic`).
    """
    try:
        parts = topic.decode().split(_SEPARATOR, 2) if len(topic) <= MAX_TOPIC_BYTES else []
    except UnicodeDecodeError:
        parts = []
    if len(parts) < 2 or not parts[1]:
        raise TopicError("not_a_topic", "it is not of the form kv@ENDPOINT@MODEL")
    return Topic(parts[1], parts[2] if len(parts) > 2 else "")


class TopicDirectory:
    """Endpoints by the topics that name them.

    A topic names, in this order: the endpoint of that name, the one that serves at that host and port, or, without a
    port, the only one on that host.
    """

    def __init__(self) -> None:
        self._serving: dict[str, str] = {}
        self._at: dict[_HostPort, set[str]] = {}

    def add(self, name: str, serving: str) -> None:
        """Register an endpoint.

        Args:
            name: unique name.
            serving: `HOST:PORT`, brackets around IPv6.
        """
        self._serving[name] = serving
        for key in _keys_of(serving):
            self._at.setdefault(key, set()).add(name)

    def remove(self, name: str) -> None:
        """Forget an endpoint."""
        for key in _keys_of(self._serving.pop(name)):
            self._at[key].discard(name)
            if not self._at[key]:
                del self._at[key]

    def find(self, topic: bytes) -> str:
        """Return the name of the endpoint that publishes under `topic`.

        Raises:
            TopicError: `not_a_topic`, `unknown_endpoint`, or `ambiguous_host` if several endpoints match.
        Cost: O(length of the topic).
        """
        written = parse_topic(topic).endpoint
        if written in self._serving:
            return written
        shown = written[:SHOWN_TOPIC_BYTES]
        found: set[str] = set()
        for key in _readings(written):
            found |= self._at.get(key, set())
        if not found:
            raise TopicError("unknown_endpoint", f"no endpoint is named {shown!r} or serves there")
        if len(found) > 1:
            names = ", ".join(sorted(found))
            raise TopicError("ambiguous_host", f"{shown!r} may mean {names}; name the serving port too")
        return found.pop()


def _keys_of(serving: str) -> Iterator[_HostPort]:
    """Yield the keys under which an endpoint that serves at `HOST:PORT` is found."""
    host, _, port = serving.rpartition(":")
    host = _ipv6(host.strip("[]")) or host.lower()
    yield _HostPort(host, int(port))
    yield _HostPort(host, None)


def _readings(written: str) -> Iterator[_HostPort]:
    """Yield the readings of ENDPOINT: two for IPv6 without brackets, whose last group may be a port, else one."""
    whole = _ipv6(written.strip("[]"))
    if whole is not None:
        yield _HostPort(whole, None)
    host, colon, digits = written.rpartition(":")
    if not colon:
        yield _HostPort(written.lower(), None)
    elif digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= _MAX_PORT:
        yield _HostPort(_ipv6(host.strip("[]")) or host.lower(), int(digits))


def _ipv6(text: str) -> str | None:
    """Return the address in its canonical form, None if it is not an IPv6 address."""
    with suppress(ipaddress.AddressValueError):
        return str(ipaddress.IPv6Address(text))
    return None
