"""Routes by a configuration, with the index, the scorers and the picker that route in production."""

from __future__ import annotations

from random import Random

import msgspec

from ...configs.schema import KVAtlasConfig, TierConfig
from ...fleet.in_flight import Booking, InFlight
from ...fleet.predictions import Predictions
from ...fleet.settings import tier_specs
from ...indexer.atlas import Atlas
from ...indexer.factory import IndexCore
from ...indexer.holders import FASTEST
from ...indexer.prefix import Prefix
from ...indexer.tiers import TierSource, TierTable
from ...routing.plan.plan import make_plan
from ...scorers.core.decision import Decision
from ...scorers.core.model import Candidate, RequestView
from ...scorers.core.profile import Profile
from ..kv_events import EventBatch
from .fleet_spec import FleetSpec
from .router import Ask

SESSION_HEADER = "x-session-id"
"""Where `session-affinity-scorer` looks for the session by default."""


class IndexedRouter:
    """Implements `Router`.

    Args:
        config: what a server would be started with; endpoints, model and listeners play no part.
        fleet: the engines, whose sizes a server would read from their `/metrics`.
        core: index implementation.
        rng: draws for ties.
        profile: decides in place of the configuration's own; it sees the same candidates.

    Raises:
        SchedulingError: the plugins make no profile.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        fleet: FleetSpec,
        *,
        core: IndexCore,
        rng: Random,
        profile: Profile | None = None,
    ) -> None:
        plan = make_plan(config)
        specs = tier_specs(plan.config.tiers)
        self._profile = profile or plan.profile
        self._rng, self._core = rng.random, core
        self.atlas = Atlas(tiers=TierTable(specs), seed=config.index.hash_seed, core=core)
        predicted = plan.config.predictions
        self._predictions = Predictions(self.atlas, ttl_s=predicted.ttl if predicted.enabled else None)
        self.in_flight = InFlight()
        self._open: dict[int, tuple[Decision, Booking]] = {}
        self._wants_events = any(spec.source in (None, TierSource.EVENTS) for spec in specs)
        self._encode = msgspec.msgpack.Encoder().encode
        for server in fleet.names:
            self._follow(server, fleet, specs[FASTEST].source, plan.config.tiers[FASTEST])

    def route(self, ask: Ask) -> str | None:
        """See `Router.route`."""
        prefix = self.atlas.prefix(ask.tokens)
        view = RequestView(
            model="", now=ask.now, n_tokens=len(ask.tokens), headers={SESSION_HEADER: ask.session}
        )
        decision = self._profile.decide(view, self._candidates(ask, prefix), rng=self._rng)
        if not decision.picked:
            return None
        picked = decision.picked[0]
        self.atlas.routed(picked, prefix, decision.first.candidate.prefix)
        self._predictions.routed(decision.first.candidate, prefix, now=ask.now)
        self._profile.picked(view, decision)
        tokens = decision.first.candidate.uncached_tokens(view)
        self._open[ask.number] = decision, self.in_flight.book(picked, tokens=tokens, now=ask.now)
        return picked

    def begun(self, number: int, now: float) -> None:
        """See `Router.begun`."""
        decision, booking = self._open[number]
        booking.begun()
        self._profile.answered(decision, ttft_s=now - booking.at)

    def ended(self, number: int) -> None:
        """See `Router.ended`."""
        self._open.pop(number)[1].ended()

    def published(self, server: str, batch: EventBatch) -> None:
        """The batch takes the way it takes in production: encoded by the engine, decoded by the core."""
        if self._wants_events:
            self.atlas.apply(server, 0, self._core.decode_batch(self._encode(batch)))
            self._predictions.confirm(server, self.atlas.ledger(server, 0))

    def _candidates(self, ask: Ask, prefix: Prefix) -> list[Candidate]:
        matches = self._predictions.matches(prefix, now=ask.now)
        return [
            Candidate(
                name=server,
                address=server,
                load=load,
                prefix=matches.get(server),
                in_flight=self.in_flight.of(server),
            )
            for server, load in ask.loads.items()
        ]

    def _follow(self, server: str, fleet: FleetSpec, source: TierSource | None, fastest: TierConfig) -> None:
        self.atlas.add(server)
        if fastest.lru_capacity_per_server == "auto":
            self.atlas.set_capacity(server, FASTEST, fleet.gpu_blocks)
        if source is TierSource.ROUTING:
            for ledger in self.atlas.ledgers(server):
                ledger.without_events()
                ledger.use_block_size(fleet.block_size)
