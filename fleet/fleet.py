"""The endpoints that kvatlas knows, and everything that follows each: events, load, blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from ..configs.endpoints import EndpointAddresses, RankAddresses
from ..events.stream import Trust
from ..events.subscriber import Subscriber
from ..indexer.atlas import Atlas
from ..indexer.predicted import Prediction
from ..indexer.prefix import Prefix
from ..indexer.snapshot import SavedEndpoint, SavedRank
from ..indexer.tiers import TierSource
from ..scorers.core.model import IDLE, Candidate, Load
from .audit import Audit, Audited
from .endpoint import Endpoint
from .in_flight import InFlight, Siblings
from .instance import Instance
from .metrics import FleetMetrics
from .predictions import Predictions
from .rank import SAME_RESTART_S
from .scrape.loads import LoadTable
from .scrape.report import EngineFacts
from .scrape.scraper import Scraper
from .scrape.target import ScrapeStatus
from .settings import FleetSettings
from .subscriptions import Publishers
from .tier_bounds import TierBounds

log = logging.getLogger(__name__)


class Fleet:
    """Adds and removes endpoints, and makes candidates of them.

    Args:
        atlas: the index.
        subscriber: follows event streams.
        scraper: follows the endpoints' own metrics.
        loads: what the scraper found.
        metrics: counters.
        settings: how endpoints are looked at, until `configure`.
        siblings: other processes that send requests to the same endpoints; None for none.
    """

    def __init__(
        self,
        *,
        atlas: Atlas,
        subscriber: Subscriber,
        scraper: Scraper,
        loads: LoadTable,
        metrics: FleetMetrics,
        settings: FleetSettings,
        siblings: Siblings | None = None,
    ) -> None:
        self.atlas = atlas
        self.predictions = Predictions(atlas, ttl_s=settings.predict_s)
        self._scraper, self._loads, self._metrics = scraper, loads, metrics
        self.forgotten: list[Callable[[str], None]] = []
        """Called with the name of every endpoint that is forgotten."""
        self.publishers = Publishers(subscriber, atlas=atlas, predictions=self.predictions, metrics=metrics)
        self.in_flight = InFlight(siblings)
        self.audit = Audit()
        self._bounds = TierBounds(atlas, settings)
        self.is_from_routing = atlas.tiers.specs[0].source is TierSource.ROUTING
        """Whether blocks are known from routing by configuration, whatever an event stream says."""
        self.settings = settings
        self._endpoints: dict[str, Endpoint] = {}

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)

    def get(self, name: str) -> Endpoint | None:
        """The endpoint of that name."""
        return self._endpoints.get(name)

    def add(
        self,
        name: str,
        addresses: EndpointAddresses,
        labels: Mapping[str, str],
        *,
        instance: Instance | None = None,
        saved: SavedEndpoint | None = None,
    ) -> None:
        """Start to follow an endpoint.

        Args:
            name: unique name.
            addresses: where it serves, publishes and reports its load.
            labels: free labels.
            instance: who it is in the standard contract; None for `name` in the default tenant.
            saved: what to go on from; None to start with empty books.
        Raises:
            SubscriptionError: an event address that cannot be used; what could be followed is, until it is removed.
        """
        endpoint = Endpoint(name, addresses, labels, time.monotonic(), instance or Instance(name))
        self.atlas.add(name, n_ranks=0, space=endpoint.instance.space)
        _warn_of_port_collision(name, addresses)
        self._endpoints[name] = endpoint
        if saved is not None:
            endpoint.started = saved.started
        ranks = {each.rank: each for each in saved.ranks} if saved is not None else {}
        for rank in addresses.ranks:
            self.add_rank(name, rank, saved=ranks.get(rank.rank))
        if addresses.metrics is not None:
            self._scraper.add(name, addresses.metrics, self.settings.engines.of(labels))

    def add_rank(self, name: str, rank: RankAddresses, *, saved: SavedRank | None = None) -> None:
        """Start to follow one more rank of an endpoint, from what was saved of it or from nothing.

        Raises:
            SubscriptionError: an event address that cannot be used; the rank is not added.
        """
        self.publishers.follow(self._endpoints[name], rank, saved)

    async def remove(self, name: str) -> None:
        """Stop following an endpoint and forget all it holds, and free its sockets."""
        self.forget(name)
        await self.release()

    async def remove_rank(self, name: str, rank: int) -> None:
        """As `remove`, one rank; with the last one goes the endpoint."""
        endpoint = self._endpoints[name]
        if len(endpoint.publishers) == 1:
            await self.remove(name)
            return
        publisher = next(publisher for publisher in endpoint.publishers if publisher.rank == rank)
        endpoint.publishers.remove(publisher)
        self.publishers.leave(publisher)
        self.atlas.remove_rank(name, rank)
        await self.release()

    def forget(self, name: str) -> None:
        """Stop following an endpoint and forget all it holds, at once; a re-add starts clean.

        Queued events of it do not come back. `release` frees its sockets.
        """
        endpoint = self._endpoints.pop(name)
        if endpoint.addresses.metrics is not None:
            self._scraper.remove(name)
        for publisher in endpoint.publishers:
            self.publishers.leave(publisher)
        self.atlas.remove(name)
        self.predictions.forget(name)
        self.in_flight.forget(name)
        self.audit.forget(name)
        self._metrics.forget(name)
        for forget in self.forgotten:
            forget(name)

    async def release(self) -> None:
        """Free the sockets of forgotten endpoints."""
        await self.publishers.release()

    def reset(self, name: str) -> None:
        """Forget all that an endpoint holds and learn it anew: from its publishers' replay, from events, from routing."""
        for publisher in self._endpoints[name].publishers:
            publisher.restarted("an operator asked for it")
        status = self.scrape_status(name)
        if status is not None and status.facts is not None:
            self.facts_changed(name, status.facts)

    def relabel(self, name: str, labels: Mapping[str, str]) -> None:
        """Give an endpoint other labels; it keeps all it has."""
        self._endpoints[name].labels = labels
        self._name_series(self._endpoints[name])

    def candidates(
        self,
        prefix: Prefix | None,
        *,
        now: float,
        subset: frozenset[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Candidate]:
        """Endpoints that may take a request, with load and prefix, predictions included.

        Args:
            prefix: the prompt's block keys, None without.
            now: monotonic seconds.
            subset: addresses allowed (`host:port`, or `host` for every port); None allows all.
            labels: that an endpoint must have; None or empty allows all.
        """
        matches = self.predictions.matches(prefix, now=now)
        self._settle(now)
        loads, in_flight = self._loads.believed(now), self.in_flight.loads(self._endpoints)
        # what is known from routing needs no trust in events
        worth: Mapping[Trust, float] = {} if self.is_from_routing else self.settings.trust_credit
        doubts = self.audit.doubts(now=now) if self.settings.audit_lowers_credit else {}
        found: list[Candidate] = []
        for name, endpoint in self._endpoints.items():
            serving = endpoint.addresses.serving
            if serving is None or (subset is not None and not _allowed(serving, subset)):
                continue
            if labels and not endpoint.has_labels(labels):
                continue
            match = matches.get(name)
            trust = endpoint.trust_in(match.rank if match is not None else 0)
            found.append(
                Candidate(
                    name,
                    serving,
                    endpoint.labels,
                    loads.get(name),
                    match,
                    (worth.get(trust, 1.0) if trust is not None else 1.0) * doubts.get(name, 1.0),
                    in_flight.get(name, IDLE),
                    trust or Trust.DARK,
                )
            )
        return found

    def routed(self, picked: Candidate, prefix: Prefix | None, *, now: float) -> Prediction | None:
        """A request was sent to the endpoint: its blocks are in use, and its load is about to change.

        Returns what the endpoint is thus predicted to hold, None for nothing new.
        """
        self._scraper.picked(picked.name)
        if prefix is not None:
            self.atlas.routed(picked.name, prefix, picked.prefix)
        return self.predictions.routed(picked, prefix, now=now)

    def answering_urls(self, labels: Mapping[str, str]) -> list[str]:
        """Base URLs of the endpoints with `labels` that serve requests and whose last scrape, if any, went well."""
        return [
            f"http://{endpoint.addresses.serving}"
            for endpoint in self
            if endpoint.addresses.serving is not None
            and endpoint.has_labels(labels)
            and ((status := self.scrape_status(endpoint.name)) is None or not status.failing)
        ]

    def audited(self, found: Audited, *, now: float) -> None:
        """An engine has told what it reused of a prompt; `now` in monotonic seconds."""
        self.audit.add(found, now=now)
        endpoint = self._endpoints.get(found.endpoint)
        if endpoint is not None:
            self._bounds.learn(endpoint, found)

    def load(self, name: str, *, now: float) -> Load | None:
        """Last load of the endpoint, None when it was never read or is too old."""
        return self._loads.get(name, now)

    def scrape_status(self, name: str) -> ScrapeStatus | None:
        """How scraping the endpoint goes, None when it is not scraped."""
        endpoint = self._endpoints[name]
        return self._scraper.status(name) if endpoint.addresses.metrics is not None else None

    def facts_changed(self, name: str, facts: EngineFacts) -> None:
        """What an endpoint's /metrics tells of itself is new or different."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            return
        if facts.process_start_s is not None:  # first: what else is told is told of the new process
            self._note_start(endpoint, facts.process_start_s)
        if facts.gpu_blocks_per_engine is not None:
            endpoint.gpu_blocks = facts.gpu_blocks_per_engine
            self._bounds.follow(endpoint)
        endpoint.offloads = facts.offloads
        if facts.block_size is not None:  # after a restart, which forgets the old one
            for ledger in self.atlas.ledgers(name):
                ledger.use_block_size(facts.block_size)

    def configure(self, settings: FleetSettings) -> None:
        """Look at endpoints otherwise from now on; `shrinking` makes tiers smaller where they are to be."""
        self.settings = settings
        self.predictions.ttl_s = settings.predict_s
        self._bounds.configure(settings)
        for endpoint in self:
            self._name_series(endpoint)

    def shrinking(self) -> Iterator[None]:
        """Bring tiers to the bounds that `configure` gave them, in steps between which others may run."""
        return self._bounds.shrinking(self._endpoints)

    def settled(self, *, now: float, patience_s: float) -> bool:
        """Whether every endpoint's history was fetched or, `patience_s` after it was added, waited for in vain."""
        waiting = (Trust.DARK, Trust.STALE, Trust.REPLAYING)  # stale: restored, and not connected yet
        return all(
            endpoint.trust not in waiting or now - endpoint.added_at > patience_s
            for endpoint in self
            if endpoint.has_events
        )

    def tick(self, *, now: float) -> None:
        """Let time pass: predictions and unseen requests expire, capacities are followed, and an engine that offloads and stays silent about it is known otherwise after a while."""
        self.predictions.expire(now=now)
        self._settle(now)
        for endpoint in self:
            self._bounds.follow(endpoint)
            if endpoint.offloads:
                for ledger in self.atlas.ledgers(endpoint.name):
                    ledger.offloads(now=now)

    def _name_series(self, endpoint: Endpoint) -> None:
        """Scrape an endpoint under other names, where settings or labels have changed them."""
        if endpoint.addresses.metrics is not None:
            self._scraper.rename(endpoint.name, self.settings.engines.of(endpoint.labels))

    def _settle(self, now: float) -> None:
        self.in_flight.settle(lambda name: self._loads.get(name, now), now=now)

    def _note_start(self, endpoint: Endpoint, started: float) -> None:
        """A new process start time is a restart, also where the event streams have not told of it."""
        before, endpoint.started = endpoint.started, started
        if before is None or started == before:
            return
        noticed_since = time.monotonic() - SAME_RESTART_S
        for publisher in endpoint.publishers:
            if publisher.reset_at < noticed_since:
                publisher.restarted("its process start time changed")


def _warn_of_port_collision(name: str, addresses: EndpointAddresses) -> None:
    events, replays = ({getattr(rank, kind) for rank in addresses.ranks} for kind in ("events", "replay"))
    for address in sorted(events & replays - {None}):
        log.warning(
            "%s: %s is the event address of one rank and the replay address of another; let the two ports lie at least "
            "dataParallelSize apart, in the engine and here",
            name, address,
        )  # fmt: skip


def _allowed(address: str, subset: frozenset[str]) -> bool:
    return address in subset or address.rpartition(":")[0] in subset
