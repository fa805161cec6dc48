"""What decides where a replayed request goes."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Protocol

from ...scorers.core.model import Load
from ..kv_events import EventBatch


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that needs a server.

    Attributes:
        number: its place in the trace.
        now: simulated seconds.
        tokens: token ids of its prompt.
        session: what requests of one conversation have in common.
        loads: server -> load as last scraped; every server is there.
    """

    number: int
    now: float
    tokens: array[int]
    session: str
    loads: Mapping[str, Load]


class Router(Protocol):
    """Decides, and is told what a gateway would be told."""

    def route(self, ask: Ask) -> str | None:
        """The server that takes the request; None refuses it."""
        ...

    def begun(self, number: int, now: float) -> None:
        """The first token of a routed request came."""
        ...

    def ended(self, number: int) -> None:
        """The answer to a routed request ended."""
        ...

    def published(self, server: str, batch: EventBatch) -> None:
        """A server published KV events."""
        ...


class BlindRouter:
    """What routers have in common that look at no server."""

    def begun(self, number: int, now: float) -> None:
        """See `Router.begun`."""

    def ended(self, number: int) -> None:
        """See `Router.ended`."""

    def published(self, server: str, batch: EventBatch) -> None:
        """See `Router.published`."""


class RoundRobin(BlindRouter):
    """Every server in turn."""

    def __init__(self) -> None:
        self._n_routed = 0

    def route(self, ask: Ask) -> str:
        """See `Router.route`."""
        servers = list(ask.loads)
        self._n_routed += 1
        return servers[(self._n_routed - 1) % len(servers)]


class RandomChoice(BlindRouter):
    """Any server."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def route(self, ask: Ask) -> str:
        """See `Router.route`."""
        return self._rng.choice(list(ask.loads))


class SessionHash(BlindRouter):
    """The server that rendezvous hashing gives the session: always the same one, whatever its load."""

    def route(self, ask: Ask) -> str:
        """See `Router.route`."""
        return max(ask.loads, key=lambda server: blake2b(f"{server}/{ask.session}".encode()).digest())
