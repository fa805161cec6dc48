"""Endpoints of pods: one per target port of the pool on each serving pod.

An endpoint is named `POD-rank-INDEX`, as in the reference endpoint picker; INDEX is the position of the port in the pool.
Its KV events come from `events.port` and `events.replayPort`, its snapshots from `events.snapshotPort` if there is one, plus
one for each rank before it on the same pod, as engines number their ports. The annotations `kvatlas.io/events-port`,
`kvatlas.io/replay-port` and `kvatlas.io/snapshot-port` override them: with one port to count from, with one port per target port separated by commas, or with an empty value for no such socket.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from ...configs.address import HostPort, ZmqAddress
from ...configs.endpoints import DEFAULT_SCRAPE, addresses_of_ranks
from ...configs.schema import EventsConfig
from ...configs.scraping import MetricsScrapeConfig
from ..roster import Wanted
from .kinds import Pod, PodAnnotations, Pool

log = logging.getLogger(__name__)

_PORT = re.compile(r" *[0-9]{1,5} *")

MAX_RANKS = 1024
"""Limit of data-parallel ranks per endpoint, as in configuration files."""


SLICE = 8
"""Pods that are looked at before other tasks may run: adding an endpoint with events takes half a millisecond."""


@dataclass(frozen=True, slots=True)
class _Made:
    """Endpoints of one pod, from what they were made, and why some of them lack what its annotations ask for."""

    inputs: tuple[object, ...] | None
    endpoints: Mapping[str, Wanted]
    problem: str | None


_NONE = _Made(None, {}, None)


class PodEndpoints:
    """Makes endpoints from pods, for a slice of the changed pods at a time.

    Args:
        events: where engines publish unless a pod's annotations differ.
        scrape: where engines serve their metrics.
    """

    def __init__(self, events: EventsConfig, scrape: MetricsScrapeConfig = DEFAULT_SCRAPE) -> None:
        self._events, self._scrape = events, scrape
        self._pool: Pool | None = None
        self._made: dict[str, _Made] = {}
        self._outdated = False
        self._serving: dict[str, Pod] = {}
        self._gone: dict[str, None] = {}

    def configure(self, events: EventsConfig, scrape: MetricsScrapeConfig = DEFAULT_SCRAPE) -> None:
        """Replace the settings; the next `note` looks at every pod."""
        self._outdated |= (events, scrape.place) != (self._events, self._scrape.place)
        self._events, self._scrape = events, scrape

    def note(self, pods: Mapping[str, Pod], pool: Pool | None, changed: Iterable[str]) -> None:
        """Note changes for `take`.

        Args:
            pods: all pods by name.
            pool: selects the pods, and has their ports; None if there is no pool, so that no pod has endpoints.
            changed: names of pods that changed; after another pool or other event settings, all count as changed.
        Cost: O(changed), unless all count as changed.
        """
        if self._outdated or pool != self._pool:
            self._pool, self._outdated = pool, False
            self._made = {name: replace(made, inputs=None) for name, made in self._made.items()}
            changed = (*self._made, *self._serving, *pods)
        for name in changed:
            pod = pods.get(name)
            if pod is not None and pool is not None and pool.selects(pod) and pod.serves:
                self._serving[name] = pod
                self._gone.pop(name, None)
            else:
                self._serving.pop(name, None)
                if name in self._made:
                    self._gone[name] = None

    @property
    def has_more(self) -> bool:
        """Whether `take` would look at more pods."""
        return bool(self._serving or self._gone)

    def take(self) -> dict[str, Wanted | None]:
        """Return changed endpoints by name, None for those that are gone.

        Looks at `SLICE` pods that serve, and at as many that do not, so that removals do not wait behind many additions.
        """
        found: dict[str, Wanted | None] = {}
        for name in tuple(islice(self._serving, SLICE)):
            found.update(self._update(name, self._serving.pop(name)))
        for name in tuple(islice(self._gone, SLICE)):
            del self._gone[name]
            found.update(dict.fromkeys(self._made.pop(name).endpoints))
        return found

    def _update(self, name: str, pod: Pod) -> Iterator[tuple[str, Wanted | None]]:
        """Make the endpoints of a pod that serves; yield those that changed."""
        known = self._made.get(name, _NONE)
        inputs = _inputs(pod)
        if inputs == known.inputs or self._pool is None:
            return
        made = self._made[name] = _make(pod, self._pool, self._events, self._scrape)
        if made.problem and made.problem != known.problem:
            log.warning("pod %s: %s", name, made.problem)
        yield from ((each, None) for each in known.endpoints if each not in made.endpoints)
        yield from (
            (each, wanted) for each, wanted in made.endpoints.items() if wanted != known.endpoints.get(each)
        )


def _inputs(pod: Pod) -> tuple[object, ...]:
    """Return all that decides on the endpoints of a pod that serves."""
    meta = pod.metadata
    return (meta.uid, meta.labels, meta.annotations, pod.status.pod_ip, pod.status.host_ip)


def _make(pod: Pod, pool: Pool, events: EventsConfig, scrape: MetricsScrapeConfig) -> _Made:
    problem: str | None = None
    for with_events in (True, False):
        try:
            endpoints = dict(_endpoints(pod, pool, events, scrape, with_events=with_events))
            return _Made(_inputs(pod), endpoints, problem)
        except ValueError as error:
            problem = problem or f"{error}; its endpoints have no KV events until that is fixed"
    return _Made(_inputs(pod), {}, problem)


def _endpoints(
    pod: Pod, pool: Pool, events: EventsConfig, scrape: MetricsScrapeConfig, *, with_events: bool
) -> Iterator[tuple[str, Wanted]]:
    said = pod.metadata.annotations
    n_ranks = _ranks(said.data_parallel_size) if with_events else 1
    active = _active_ports(said)
    for index, port in enumerate(pool.target_ports):
        if active is not None and port not in active:
            continue
        serving = HostPort.at(pod.status.pod_ip, port)
        publisher = replay = snapshots = None
        if with_events:
            publisher = _socket(
                serving.host, _port(said.events_port, events.port, index, n_ranks, "events-port")
            )
            replay = _socket(
                serving.host, _port(said.replay_port, events.replay_port, index, n_ranks, "replay-port")
            )
            snapshots = _socket(
                serving.host,
                _port(said.snapshot_port, events.snapshot_port, index, n_ranks, "snapshot-port"),
            )
        addresses = addresses_of_ranks(
            serving,
            publisher=publisher,
            replay=replay if publisher else None,
            snapshots=snapshots if publisher else None,
            metrics=scrape.url_of(serving.url_host, serving.port),
            n_ranks=n_ranks,
            events=events,
            node=_node(pod.status.host_ip),
            asks_engine=with_events and said.events_port is None and events.mode == "connect",
        )
        yield f"{pod.metadata.name}-rank-{index}", Wanted(addresses, pod.metadata.labels, pod.metadata.uid)


def _node(host: str) -> str | None:
    """Return the host of a node, None if it is unknown."""
    return HostPort.at(host, 1).url_host if host else None


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


def _port(text: str | None, usual: int | None, index: int, n_ranks: int, annotation: str) -> int | None:
    """Return the port of the first rank behind a target port, None for no socket."""
    if text is None:
        return None if usual is None else usual + index * n_ranks
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(_PORT.fullmatch(part) for part in parts) or (len(parts) > 1 and index >= len(parts)):
        raise ValueError(
            f"kvatlas.io/{annotation} is {text!r}, want one port, or one per target port separated by commas"
        )
    return int(parts[index]) if len(parts) > 1 else int(parts[0]) + index * n_ranks
