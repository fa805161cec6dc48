"""The fleet: every endpoint, with its events, its load and its part of the index."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from ..configs.endpoints import EndpointAddresses, RankAddresses
from ..events.subscriber import Subscriber
from ..indexer.atlas import Atlas
from ..indexer.match_columns import MatchColumns
from ..indexer.predicted import Prediction
from ..indexer.prefix import Prefix, TextLimits
from ..indexer.snapshot import SavedEndpoint, SavedRank
from ..indexer.tiers import TierSource
from ..scorers.core.candidates import Candidates
from ..scorers.core.model import PREFILL_SPEED, Candidate, Load
from .audit import Audit, Audited
from .endpoint import Endpoint
from .in_flight import InFlight, Siblings
from .instance import Instance
from .known_loads import KnownLoads
from .metrics import FleetMetrics
from .predictions import Predictions
from .scrape.loads import LoadTable
from .scrape.report import EngineFacts
from .scrape.scraper import Scraper
from .scrape.target import ScrapeStatus
from .settings import FleetSettings
from .subscriptions import Subscriptions, warn_of_port_collision
from .table import FleetTable
from .tier_bounds import TierBounds

log = logging.getLogger(__name__)


class Fleet:
    """The endpoints, and the candidates they make for a request. For one event loop; no locks.

    Args:
        atlas: the index.
        subscriber: receives the endpoints' events.
        scraper: reads the endpoints' metrics.
        loads: filled by the scraper.
        metrics: counters.
        settings: initial settings; `configure` replaces them.
        siblings: other processes that send requests to the same endpoints; None if there are none.
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
        """Callbacks, called with the name of every endpoint that is removed."""
        self._table = FleetTable({}, atlas.ledgers_of)
        self._table.use_attributes(settings.engines.attributes, settings.other_attributes)
        loads.listen(self._table.set_load)
        self.subscriptions = Subscriptions(
            subscriber, atlas=atlas, predictions=self.predictions, metrics=metrics, table=self._table
        )
        self.in_flight = InFlight(siblings, on_change=self._table.set_in_flight)
        self.known_loads = KnownLoads(self.in_flight)
        scraper.use_accounts(self.known_loads)
        self.audit = Audit()
        self._endpoints: dict[str, Endpoint] = {}
        self.bounds = TierBounds(atlas, settings, self._endpoints)
        self.is_from_routing = atlas.tiers.specs[0].source is TierSource.ROUTING
        """Whether the configuration fills the fastest tier from routing and ignores event streams."""
        self.settings = settings
        self._use_sizes()
        self.changes = 0
        """Endpoints and ranks that were added or removed so far, for those who keep what follows from them."""
        self._use_credits()

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)

    def get(self, name: str) -> Endpoint | None:
        """Return the endpoint of that name, None if there is none."""
        return self._endpoints.get(name)

    # -- endpoints ------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        addresses: EndpointAddresses,
        labels: Mapping[str, str],
        *,
        instance: Instance | None = None,
        saved: SavedEndpoint | None = None,
        hidden: bool = False,
    ) -> None:
        """Add an endpoint: subscribe to its events and scrape its metrics.

        Args:
            name: unique name.
            addresses: where it serves requests, publishes events and exposes metrics.
            labels: free labels.
            instance: its identity in the standard contract; None for `name` in the default tenant.
            saved: state to restore from a snapshot; None to start empty.
            hidden: whether it takes no requests until `show`.
        Raises:
            SubscriptionError: an event address cannot be used. The endpoint stays, with the ranks before that one,
                until it is removed.
        """
        self.changes += 1
        endpoint = Endpoint(name, addresses, labels, time.monotonic(), instance or Instance(name))
        self.atlas.add(name, n_ranks=0, space=endpoint.instance.space)
        warn_of_port_collision(name, addresses)
        self._endpoints[name] = endpoint
        self._table.add(name, None if hidden else endpoint.address, labels)
        self._table.set_in_flight(name, self.in_flight.of(name))
        if (load := self._loads.last(name)) is not None:
            self._table.set_load(name, load)
        if saved is not None:
            endpoint.started = saved.started
        ranks = {each.rank: each for each in saved.ranks} if saved is not None else {}
        for rank in addresses.ranks:
            self.add_rank(name, rank, saved=ranks.get(rank.rank))
        self.rescrape(name, addresses)

    def add_rank(self, name: str, rank: RankAddresses, *, saved: SavedRank | None = None) -> None:
        """Add one rank to an endpoint, restored from `saved` if that is given.

        Raises:
            SubscriptionError: an event address cannot be used; the rank is not added.
        """
        self.changes += 1
        endpoint = self._endpoints[name]
        self.subscriptions.follow(endpoint, rank, saved)
        endpoint.use_block_size(endpoint.told_block_size, self.settings.approximate)

    async def remove(self, name: str) -> None:
        """Remove an endpoint with everything known of it, and free its sockets."""
        self.forget(name)
        await self.release()

    async def remove_rank(self, name: str, number: int) -> None:
        """Remove one rank as `remove` does; removing the last one removes the endpoint."""
        endpoint = self._endpoints[name]
        if len(endpoint.ranks) == 1:
            await self.remove(name)
            return
        rank = next(rank for rank in endpoint.ranks if rank.number == number)
        self.changes += 1
        endpoint.ranks.remove(rank)
        self.subscriptions.leave(rank)
        self.atlas.remove_rank(name, number)
        await self.release()

    def forget(self, name: str) -> None:
        """Remove an endpoint with everything known of it, at once; adding it again starts empty.

        Its queued events are dropped. `release` frees its sockets.
        """
        self.changes += 1
        endpoint = self._endpoints.pop(name)
        if endpoint.addresses.metrics is not None:
            self._scraper.remove(name)
        for rank in endpoint.ranks:
            self.subscriptions.leave(rank)
        self.atlas.remove(name)
        self.predictions.forget(name)
        self.in_flight.forget(name)
        self.audit.forget(name)
        self.bounds.shared.forget(endpoint)
        self._table.remove(name)
        self._metrics.forget(name)
        for forget in self.forgotten:
            forget(name)

    def show(self, name: str) -> None:
        """Have an endpoint take requests."""
        self._table.move(name, self._endpoints[name].address)

    def hide(self, name: str) -> None:
        """Have an endpoint take no further requests; everything else of it stays until `forget`. Cost: O(1)."""
        self._table.move(name, None)

    async def release(self) -> None:
        """Free the sockets of removed endpoints."""
        await self.subscriptions.release()

    def reset(self, name: str) -> None:
        """Forget which blocks an endpoint holds and learn them again: from its replay, from events, from routing."""
        for rank in self._endpoints[name].ranks:
            rank.restarted("an operator asked for it")
        status = self.scrape_status(name)
        if status is not None and status.facts is not None:
            self.facts_changed(name, status.facts)

    def relabel(self, name: str, labels: Mapping[str, str]) -> None:
        """Replace the labels of an endpoint; everything else known of it stays."""
        endpoint = self._endpoints[name]
        endpoint.relabel(labels)
        self._table.relabel(name, labels)
        self._choose_engines(endpoint)

    def rescrape(self, name: str, addresses: EndpointAddresses) -> None:
        """Scrape an endpoint at another URL of its metrics; its other addresses, and everything known of it, stay."""
        endpoint = self._endpoints[name]
        endpoint.addresses, engines = addresses, self.settings.engines.of(endpoint.labels)
        self._scraper.move(name, addresses.metrics, engines, on_facts=self.facts_changed)

    # -- requests -------------------------------------------------------------------------------------------------

    def candidates(
        self,
        prefix: Prefix | None,
        *,
        now: float,
        subset: frozenset[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Candidates:
        """Return the endpoints that may take a request, with load and matched prefix, predictions included.

        Args:
            prefix: the prompt's block keys; None if they are unknown.
            now: monotonic seconds.
            subset: addresses allowed (`host:port`, or `host` for every port); None allows all.
            labels: labels that an endpoint must have; None or empty allows all.
        Cost: one match of the prefix, and `FleetTable.candidates`.
        """
        matches = self.predictions.matches(prefix, self._table.directory(), now=now)
        if self.in_flight.has_unseen:
            self._settle(now)
        return self._table.candidates(
            matches,
            now=now,
            stale_after_s=self._loads.stale_after_s,
            doubts=self.audit.doubts(now=now) if self.settings.audit_lowers_credit else {},
            subset=subset,
            labels=labels,
        )

    def columns(self, prefix: Prefix) -> MatchColumns | None:
        """Return what each endpoint holds of a prompt, by row in the order of iteration; None if no block size is known.

        Predictions do not count. Cost: as `Atlas.columns`.
        """
        return self.atlas.columns(prefix, self._table.directory().names)

    def routed(self, picked: Candidate, prefix: Prefix | None, *, now: float) -> Prediction | None:
        """Record that a request was sent to the endpoint: renew its blocks' recency and scrape it soon.

        Returns what the endpoint is now predicted to hold, None if that is nothing new.
        """
        self._scraper.picked(picked.name)
        if prefix is not None:
            self.atlas.routed(picked.name, prefix, picked.prefix)
        return self.predictions.routed(picked, prefix, now=now)

    def answering_urls(self, labels: Mapping[str, str]) -> list[str]:
        """Return base URLs of the endpoints with `labels` that serve requests and whose last scrape did not fail."""
        return [
            f"http://{endpoint.address}"
            for endpoint in self
            if endpoint.address is not None
            and endpoint.has_labels(labels)
            and ((status := self.scrape_status(endpoint.name)) is None or not status.failing)
        ]

    def audited(self, found: Audited, *, now: float) -> None:
        """Record an audited request, and learn tier bounds from it; `now` in monotonic seconds."""
        self.audit.add(found, now=now)
        if (endpoint := self._endpoints.get(found.endpoint)) is not None:
            self.bounds.learn(endpoint, found)
            for news in endpoint.learn(found):
                log.warning("%s %s", found.endpoint, news)

    # -- load and facts -------------------------------------------------------------------------------------------

    def load(self, name: str, *, now: float) -> Load | None:
        """Return the last load of the endpoint, None if it was never read or is too old."""
        return self._loads.get(name, now)

    def scrape_status(self, name: str) -> ScrapeStatus | None:
        """Return the state of scraping the endpoint, None if it is not scraped."""
        endpoint = self._endpoints[name]
        return self._scraper.status(name) if endpoint.addresses.metrics is not None else None

    def facts_changed(self, name: str, facts: EngineFacts) -> None:
        """Take new facts from an endpoint's /metrics. Implements `scrape.target.FactsListener`."""
        if (endpoint := self._endpoints.get(name)) is None:
            return
        if facts.process_start_s is not None:  # first: the other facts belong to the new process
            endpoint.note_start(facts.process_start_s, now=time.monotonic())
        endpoint.told_block_size = facts.block_size or endpoint.told_block_size
        endpoint.gpu_blocks = facts.gpu_blocks_per_engine or endpoint.gpu_blocks
        endpoint.slow_blocks = facts.slow_blocks or endpoint.slow_blocks
        if facts.gpu_blocks_per_engine is not None or facts.slow_blocks is not None:
            self.bounds.follow(endpoint)
        endpoint.offloads, endpoint.finds_outside = facts.offloads, facts.finds_outside
        endpoint.drafter.expect(drafts=facts.drafts)
        endpoint.use_drafter()
        endpoint.use_block_size(facts.block_size, self.settings.approximate)  # restarts forget the old one

    def told_prefill_speed(self, name: str, tokens_per_s: float) -> None:
        """Keep the prefill speed that an endpoint's engine publishes, and show it to scorers."""
        endpoint = self._endpoints[name]
        is_first = all(each.prefill_tokens_per_s is None for each in self)
        endpoint.prefill_tokens_per_s = tokens_per_s
        if is_first:  # fleets without such engines have no column for it
            self._use_attributes()
        self._table.set_attributes(name, {PREFILL_SPEED: tokens_per_s})

    def set_attributes(self, name: str, values: Mapping[str, float]) -> None:
        """Show attributes of an endpoint that do not come with its load; see `FleetTable.set_attributes`."""
        self._table.set_attributes(name, values)

    # -- settings and time ----------------------------------------------------------------------------------------

    def configure(self, settings: FleetSettings) -> None:
        """Replace the settings; `shrinking` then evicts what smaller tiers cannot hold."""
        resized = settings.approximate != self.settings.approximate
        self.settings = settings
        self._use_credits()
        self._use_attributes()
        self._use_sizes()
        self.predictions.ttl_s = settings.predict_s
        self.bounds.configure(settings)
        if resized:
            self._resize()
        for endpoint in self:
            self._choose_engines(endpoint)

    def shrinking(self) -> Iterator[None]:
        """Evict blocks beyond the bounds that `configure` set; other tasks may run between the steps."""
        return self.bounds.shrinking(self._endpoints)

    def awaited(self, *, now: float) -> list[str]:
        """Return the endpoints whose event history may still come; see `Rank.awaits_history`."""
        return [
            endpoint.name
            for endpoint in self
            if any(rank.awaits_history(waited_s=now - endpoint.added_at) for rank in endpoint.ranks)
        ]

    def tick(self, *, now: float) -> None:
        """Expire predictions and hidden requests, and update tier bounds and tier sources.

        Engines that offload without sending events for it change their tier source after some time. Cost: O(ranks * tiers).
        """
        self.predictions.expire(now=now)
        self._settle(now)
        for endpoint in self:
            self.bounds.follow(endpoint)
            if endpoint.has_slow_memory:
                for rank in endpoint.ranks:
                    rank.ledger.offloads(now=now)

    def _choose_engines(self, endpoint: Endpoint) -> None:
        if endpoint.addresses.metrics is not None:
            self._scraper.rename(endpoint.name, self.settings.engines.of(endpoint.labels))

    def _use_credits(self) -> None:
        # blocks known from routing do not depend on trust in events
        self._table.use_credits({} if self.is_from_routing else self.settings.trust_credit)

    def _use_attributes(self) -> None:
        has_speeds = any(each.prefill_tokens_per_s is not None for each in self)
        others = (*self.settings.other_attributes, *((PREFILL_SPEED,) if has_speeds else ()))
        self._table.use_attributes(self.settings.engines.attributes, others)

    def _use_sizes(self) -> None:
        approximate = self.settings.approximate
        self.atlas.assumed_block_size = approximate.block_size(None)
        self.atlas.text_limits = TextLimits(
            approximate.max_prefix_tokens_to_match, approximate.max_prefix_blocks_to_match
        )

    def _resize(self) -> None:
        """Forget blocks that were learned from routing at another block size than the configured one."""
        for endpoint in self:
            size = self.settings.approximate.block_size(endpoint.told_block_size)
            for rank in endpoint.ranks:
                if rank.ledger.learns_from_routing:
                    rank.ledger.assume_block_size(self.atlas.assumed_block_size)
                    if rank.ledger.block_size != size:
                        self.reset(endpoint.name)
                        break

    def _settle(self, now: float) -> None:
        self.in_flight.settle(lambda name: self._loads.get(name, now), now=now)
