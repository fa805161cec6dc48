"""The routers of a replay: the protocol, and those that ignore the state of the servers."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Protocol

from ...scorers.core.model import Load
from ...scorers.core.slo import Slo
from ..kv_events import EventBatch


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """One request to route.

    Attributes:
        number: its index in the trace.
        now: simulated seconds.
        tokens: token ids of its prompt.
        session: equal for all requests of one conversation.
        loads: server -> load at the last scrape, for all servers.
        slo: objectives that its client names, None if it names none.
        n_media: images, videos and audio in its prompt.
    """

    number: int
    now: float
    tokens: array[int]
    session: str
    loads: Mapping[str, Load]
    slo: Slo | None = None
    n_media: int = 0


@dataclass(frozen=True, slots=True)
class OtherStages:
    """Servers that do stages of a request for the one that answers.

    Attributes:
        prefill: computes the prompt; None if the server that answers does.
        encode: encode the media, taken in turn; empty if the server does that computes the prompt.
    """

    prefill: str | None = None
    encode: tuple[str, ...] = ()


NO_OTHERS = OtherStages()


class Router(Protocol):
    """Router with the notifications that a gateway would get."""

    def route(self, request: RouteRequest) -> str | None:
        """Return the server that answers a request; None to reject it."""
        ...

    def other_stages(self, number: int) -> OtherStages:
        """Return who else works for a routed request."""
        ...

    def begun(self, number: int, now: float) -> None:
        """Record the first token of a routed request."""
        ...

    def ended(self, number: int, *, tpot_s: float | None = None, n_output: int | None = None) -> None:
        """Record the end of a routed request.

        Args:
            number: of the request.
            tpot_s: seconds per output token after the first, None if there is no second one.
            n_output: generated tokens, None if it was refused by the engine.
        """
        ...

    def published(self, server: str, batch: EventBatch) -> None:
        """Record KV events that a server published."""
        ...


class BlindRouter:
    """Base of routers that ignore the state of the servers, and their roles."""

    def other_stages(self, number: int) -> OtherStages:  # noqa: ARG002 (Router)
        """See `Router.other_stages`."""
        return NO_OTHERS

    def begun(self, number: int, now: float) -> None:
        """See `Router.begun`."""

    def ended(self, number: int, *, tpot_s: float | None = None, n_output: int | None = None) -> None:
        """See `Router.ended`."""

    def published(self, server: str, batch: EventBatch) -> None:
        """See `Router.published`."""


class RoundRobin(BlindRouter):
    """Router that takes the servers in turn."""

    def __init__(self) -> None:
        self._n_routed = 0

    def route(self, request: RouteRequest) -> str:
        """See `Router.route`."""
        servers = list(request.loads)
        self._n_routed += 1
        return servers[(self._n_routed - 1) % len(servers)]


class RandomChoice(BlindRouter):
    """Router that picks a random server."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def route(self, request: RouteRequest) -> str:
        """See `Router.route`."""
        return self._rng.choice(list(request.loads))


class SessionHash(BlindRouter):
    """Router by rendezvous hashing of the session: always the same server, regardless of its load."""

    def route(self, request: RouteRequest) -> str:
        """See `Router.route`."""
        return max(request.loads, key=lambda server: blake2b(f"{server}/{request.session}".encode()).digest())
