"""Endpoints of pods: one per target port of the pool on each serving pod.

An endpoint is named `POD-rank-INDEX`, as in the reference endpoint picker; INDEX is the position of the port in the pool.
Its KV events come from `events.port` and `events.replayPort`, plus one for each rank before it on the same pod, as engines
number their ports. The annotations `kvatlas.io/events-port` and `kvatlas.io/replay-port` override them: with one port to
count from, with one port per target port separated by commas, or with an empty value for no such socket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...configs.address import HostPort, ZmqAddress
from ...configs.endpoints import addresses_of_ranks
from ...configs.schema import EventsConfig
from ..roster import Wanted
from .kinds import Pod, PodAnnotations, Pool

_PORT = re.compile(r" *[0-9]{1,5} *")

MAX_RANKS = 1024
"""Limit of data-parallel ranks per endpoint, as in configuration files."""


@dataclass(frozen=True, slots=True)
class _Made:
    """Endpoints of one pod, and why some of them lack what its annotations ask for."""

    pod: Pod
    endpoints: Mapping[str, Wanted]
    problem: str | None


class PodEndpoints:
    """Makes endpoints from pods, and caches them per pod.

    Args:
        events: where engines publish unless a pod's annotations differ.
    """

    def __init__(self, events: EventsConfig) -> None:
        self._events = events
        self._pool: Pool | None = None
        self._made: dict[str, _Made] = {}

    def configure(self, events: EventsConfig) -> None:
        """Replace the event settings."""
        if events != self._events:
            self._events, self._made = events, {}

    def of(self, pods: Iterable[Pod], pool: Pool | None) -> dict[str, Wanted]:
        """Return the endpoints of the pool's serving pods by name; empty without a pool.

        Cost: O(pods), one lookup each; only changed pods are parsed again.
        """
        if pool != self._pool:
            self._pool, self._made = pool, {}
        before, self._made = self._made, {}
        if pool is not None:
            for pod in pods:
                if pool.selects(pod) and pod.serves:
                    name = pod.metadata.name
                    known = before.get(name)
                    self._made[name] = known if known and known.pod is pod else _make(pod, pool, self._events)
        return {name: each for made in self._made.values() for name, each in made.endpoints.items()}

    @property
    def problems(self) -> dict[str, str]:
        """Pod -> why its annotations or address cannot be used."""
        return {name: made.problem for name, made in self._made.items() if made.problem}


def _make(pod: Pod, pool: Pool, events: EventsConfig) -> _Made:
    problem: str | None = None
    for with_events in (True, False):
        try:
            return _Made(pod, dict(_endpoints(pod, pool, events, with_events=with_events)), problem)
        except ValueError as error:
            problem = problem or f"{error}; its endpoints have no KV events until that is fixed"
    return _Made(pod, {}, problem)


def _endpoints(
    pod: Pod, pool: Pool, events: EventsConfig, *, with_events: bool
) -> Iterator[tuple[str, Wanted]]:
    said = pod.metadata.annotations
    n_ranks = _ranks(said.data_parallel_size) if with_events else 1
    active = _active_ports(said)
    for index, port in enumerate(pool.target_ports):
        if active is not None and port not in active:
            continue
        serving = HostPort.at(pod.status.pod_ip, port)
        publisher = replay = None
        if with_events:
            publisher = _socket(
                serving.host, _port(said.events_port, events.port, index, n_ranks, "events-port")
            )
            replay = _socket(
                serving.host, _port(said.replay_port, events.replay_port, index, n_ranks, "replay-port")
            )
        addresses = addresses_of_ranks(
            serving,
            publisher=publisher,
            replay=replay if publisher else None,
            metrics=f"http://{serving}/metrics",
            n_ranks=n_ranks,
            events=events,
        )
        yield f"{pod.metadata.name}-rank-{index}", Wanted(addresses, pod.metadata.labels, pod.metadata.uid)


def _socket(host: str, port: int | None) -> ZmqAddress | None:
    return ZmqAddress.on(HostPort.at(host, port)) if port else None


def _active_ports(said: PodAnnotations) -> frozenset[int] | None:
    """Return the ports that serve now, None for all; text that is no port is ignored."""
    text = said.old_active_ports if said.active_ports is None else said.active_ports
    return None if text is None else frozenset(int(part) for part in text.split(",") if _PORT.fullmatch(part))


def _ranks(text: str | None) -> int:
    if text is None:
        return 1
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= MAX_RANKS:
        raise ValueError(f"kvatlas.io/data-parallel-size is {text!r}, want a number from 1 to {MAX_RANKS}")
    return int(text)


def _port(text: str | None, usual: int, index: int, n_ranks: int, annotation: str) -> int | None:
    """Return the port of the first rank behind a target port, None for no socket."""
    if text is None:
        return usual + index * n_ranks
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(_PORT.fullmatch(part) for part in parts) or (len(parts) > 1 and index >= len(parts)):
        raise ValueError(
            f"kvatlas.io/{annotation} is {text!r}, want one port, or one per target port separated by commas"
        )
    return int(parts[index]) if len(parts) > 1 else int(parts[0]) + index * n_ranks
