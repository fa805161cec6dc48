"""Endpoints made of pods: one for each of the pool's ports on each pod that serves.

An endpoint is named `POD-rank-INDEX`, as the reference endpoint picker has it, INDEX being the port's place in the pool.
Its KV events are looked for on `events.port` and `events.replayPort`, one port higher for each rank before it on the same
pod, since engines count so. The annotations `kvatlas.io/events-port` and `kvatlas.io/replay-port` say otherwise: one
port to count from, one for each target port with commas between, or nothing for no such socket.
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
"""Most data-parallel ranks of one endpoint, as in configuration files."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What was made of one pod."""

    pod: Pod
    endpoints: Mapping[str, Wanted]
    problem: str | None


class PodEndpoints:
    """Makes endpoints of pods, and remembers what it made of which.

    Args:
        events: where engines publish unless a pod says otherwise.
    """

    def __init__(self, events: EventsConfig) -> None:
        self._events = events
        self._pool: Pool | None = None
        self._made: dict[str, _Made] = {}

    def configure(self, events: EventsConfig) -> None:
        """Look for events elsewhere from now on."""
        if events != self._events:
            self._events, self._made = events, {}

    def of(self, pods: Iterable[Pod], pool: Pool | None) -> dict[str, Wanted]:
        """The endpoints of those pods that belong to the pool and serve, by name; none without a pool.

        Cost: O(pods), most of them a look-up: only what changed is made anew.
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
        """Pod -> why not all of it is used as it says."""
        return {name: made.problem for name, made in self._made.items() if made.problem}


def _make(pod: Pod, pool: Pool, events: EventsConfig) -> _Made:
    problem: str | None = None
    for with_events in (True, False):
        try:
            return _Made(pod, dict(_endpoints(pod, pool, events, with_events=with_events)), problem)
        except ValueError as error:
            problem = problem or f"{error}; its endpoints have no KV events until that is mended"
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
    """Ports that serve at the moment, None for all; what is no port is no target port either."""
    text = said.old_active_ports if said.active_ports is None else said.active_ports
    return None if text is None else frozenset(int(part) for part in text.split(",") if _PORT.fullmatch(part))


def _ranks(text: str | None) -> int:
    if text is None:
        return 1
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= MAX_RANKS:
        raise ValueError(f"kvatlas.io/data-parallel-size is {text!r}, want a number from 1 to {MAX_RANKS}")
    return int(text)


def _port(text: str | None, usual: int, index: int, n_ranks: int, annotation: str) -> int | None:
    """Port of the first rank behind a target port; None for no socket."""
    if text is None:
        return usual + index * n_ranks
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(_PORT.fullmatch(part) for part in parts) or (len(parts) > 1 and index >= len(parts)):
        raise ValueError(
            f"kvatlas.io/{annotation} is {text!r}, want one port, or one for each target port with commas between"
        )
    return int(parts[index]) if len(parts) > 1 else int(parts[0]) + index * n_ranks
