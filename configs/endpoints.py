"""Addresses of one configured endpoint, given or derived."""

from __future__ import annotations

from dataclasses import dataclass, field

from .address import HostPort, ZmqAddress
from .schema import EventsConfig, StaticEndpoint
from .scraping import MetricsScrapeConfig

DEFAULT_SCRAPE = MetricsScrapeConfig()


@dataclass(frozen=True, slots=True)
class RankAddresses:
    """Event addresses of one data-parallel rank.

    Attributes:
        rank: number of the rank, from 0.
        events: ZMQ PUB address to connect to, or the local address that it connects to; None if the endpoint has no events.
        replay: ZMQ ROUTER address, None if it has no replay.
        snapshots: ZMQ ROUTER address of its snapshots, None if it has none.
    """

    rank: int
    events: str | None
    replay: str | None
    snapshots: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointAddresses:
    """Every address of one endpoint.

    Attributes:
        serving: address for requests; None if it is unknown, so that no request can be sent there.
        metrics: Prometheus URL of all ranks together, None if not scraped.
        ranks: one entry per data-parallel rank, in order.
        connects_to_us: whether its publishers connect to a local socket (`events.mode: bind`), identified by topic.
        node: host of the machine that it runs on, IPv6 in brackets; None if it is unknown.
        asks_engine: whether the event addresses are guesses, so that those which the engine itself names are better.
        block_size: tokens per block that the configuration names; None if it names none.
    """

    serving: HostPort | None
    metrics: str | None
    ranks: tuple[RankAddresses, ...]
    connects_to_us: bool = False
    node: str | None = None
    asks_engine: bool = field(default=False, compare=False)
    block_size: int | None = None


def endpoint_addresses(
    endpoint: StaticEndpoint, events: EventsConfig, scrape: MetricsScrapeConfig = DEFAULT_SCRAPE
) -> EndpointAddresses:
    """Return the endpoint's addresses; missing ones are derived from its host and the ports of `events`.

    Rank r adds r to the port of each socket; with `events.mode: bind` every rank publishes to `events.bind`. An empty
    string switches an address off, and an endpoint without events has no replay.

    Raises:
        ValueError: an address is malformed, or a rank's port would be above 65535; `load_config` rejects such files.
    """
    serving = HostPort.parse(endpoint.address)
    publisher = _address(endpoint.events, serving.host, events.port)
    return addresses_of_ranks(
        serving,
        publisher=publisher,
        replay=_address(endpoint.replay, serving.host, events.replay_port) if publisher else None,
        snapshots=_address(endpoint.snapshots, serving.host, events.snapshot_port) if publisher else None,
        metrics=scrape.url_of(serving.url_host, serving.port)
        if endpoint.metrics is None
        else endpoint.metrics or None,
        n_ranks=endpoint.data_parallel_size,
        events=events,
        asks_engine=endpoint.events is None and endpoint.replay is None and events.mode == "connect",
        block_size=endpoint.block_size,
    )


def addresses_of_ranks(
    serving: HostPort,
    *,
    publisher: ZmqAddress | None,
    replay: ZmqAddress | None,
    snapshots: ZmqAddress | None = None,
    metrics: str | None,
    n_ranks: int,
    events: EventsConfig,
    node: str | None = None,
    asks_engine: bool = False,
    block_size: int | None = None,
) -> EndpointAddresses:
    """Return the addresses of an endpoint with `n_ranks` data-parallel ranks.

    Args:
        serving: where it serves requests.
        publisher: events of rank 0; None if it publishes none.
        replay: replay of rank 0; None if it has none.
        metrics: URL of its metrics; None if they are not scraped.
        snapshots: snapshots of rank 0; None if it has none.
        n_ranks: rank r adds r to the port of each socket.
        events: with mode `bind` every rank publishes to our own address.
        node: see `EndpointAddresses`.
        asks_engine: see `EndpointAddresses`.
        block_size: see `EndpointAddresses`.
    Raises:
        ValueError: a rank's port would pass 65535.
    """
    ranks = tuple(
        RankAddresses(
            rank=rank,
            events=_events(publisher, rank, events) if publisher else None,
            replay=replay.of_rank(rank) if replay else None,
            snapshots=snapshots.of_rank(rank) if snapshots else None,
        )
        for rank in range(n_ranks)
    )
    return EndpointAddresses(
        serving=serving,
        metrics=metrics,
        ranks=ranks,
        connects_to_us=events.mode == "bind",
        node=node,
        asks_engine=asks_engine,
        block_size=block_size,
    )


def _events(publisher: ZmqAddress, rank: int, events: EventsConfig) -> str:
    return events.bind if events.mode == "bind" else publisher.of_rank(rank)


def _address(written: str | None, host: str, port: int | None) -> ZmqAddress | None:
    if written == "" or (written is None and port is None):
        return None
    return ZmqAddress.parse(written) if written else ZmqAddress.on(HostPort.at(host, port or 0))
