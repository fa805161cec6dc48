"""Router by a configuration, with the index, scorers and picker of production."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from ...configs.schema import KVAtlasConfig, TierConfig
from ...fleet.in_flight import Booking, InFlight
from ...fleet.predictions import Predictions
from ...fleet.settings import tier_specs
from ...indexer.atlas import Atlas
from ...indexer.factory import IndexCore
from ...indexer.holders import FASTEST
from ...indexer.match import PrefixMatch
from ...indexer.predicted import Prediction
from ...indexer.prefix import Prefix
from ...indexer.tiers import TierSource, TierTable
from ...routing.plan.plan import make_plan
from ...scorers.core.candidates import Candidates, Directory
from ...scorers.core.decision import ENCODE, PREFILL, Decision, Origin
from ...scorers.core.model import Candidate, RequestView
from ...scorers.core.scheduler import Deciding
from ...scorers.core.slo import TPOT_HEADERS, TTFT_HEADERS
from ..kv_events import EventBatch
from .fleet_spec import FleetSpec
from .router import OtherStages, RouteRequest

SESSION_HEADER = "x-session-id"
"""Header from which `session-affinity-scorer` reads the session by default."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One stage of a request on one server."""

    booking: Booking
    prediction: Prediction | None

    def begun(self) -> None:
        """See `Booking.begun`."""
        self.booking.begun()
        if self.prediction is not None:
            self.prediction.begun()


@dataclass(frozen=True, slots=True)
class _Open:
    """A routed request: the server that answers, and the others."""

    decision: Decision
    answering: _Part
    others: Sequence[_Part]


class IndexedRouter:
    """`Router` with a kvatlas configuration.

    Args:
        config: configuration as of a server; endpoints, model and listeners are ignored.
        fleet: the engines; a server would read their sizes from `/metrics`.
        core: index implementation.
        rng: random numbers for ties.
        profile: replaces the configuration's profile; it gets the same candidates.

    Raises:
        SchedulingError: the plugins do not form a profile.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        fleet: FleetSpec,
        *,
        core: IndexCore,
        rng: Random,
        profile: Deciding | None = None,
    ) -> None:
        plan = make_plan(config)
        specs = tier_specs(plan.config.tiers)
        self._profile = profile or plan.profile
        self._rng, self._core = rng.random, core
        self.atlas = Atlas(tiers=TierTable(specs), seed=config.index.hash_seed, core=core)
        predicted = plan.config.predictions
        self._predictions = Predictions(self.atlas, ttl_s=predicted.ttl if predicted.enabled else None)
        self.in_flight = InFlight()
        self._open: dict[int, _Open] = {}
        self._wants_events = any(spec.source in (None, TierSource.EVENTS) for spec in specs)
        self._directory = Directory(fleet.names, fleet.names, fleet.labels)
        self._encode = msgspec.msgpack.Encoder().encode
        for server in fleet.names:
            self._follow(server, fleet, specs[FASTEST].source, plan.config.tiers[FASTEST])

    def route(self, request: RouteRequest) -> str | None:
        """See `Router.route`."""
        prefix = self.atlas.prefix(request.tokens)
        view = RequestView(
            model="",
            now=request.now,
            n_tokens=len(request.tokens),
            headers=_headers(request),
            media=tuple(range(request.n_media)),
        )
        decision = self._profile.decide(view, self._candidates(request, prefix), rng=self._rng)
        if not decision.picked:
            return None
        if request.slo is not None:
            origin = Origin(str(request.number), "", "", 0, "", request.slo)
            decision = msgspec.structs.replace(decision, origin=origin)
        self._profile.picked(view, decision)
        answering = self._book(decision, view, prefix, computes=True)
        others = [
            self._book(stage.decision, view, prefix, computes=stage.name == PREFILL)
            for stage in decision.stages
        ]
        self._open[request.number] = _Open(decision, answering, others)
        return decision.picked[0]

    def other_stages(self, number: int) -> OtherStages:
        """See `Router.other_stages`."""
        stages = {each.name: each.decision.picked for each in self._open[number].decision.stages}
        return OtherStages(stages[PREFILL][0] if PREFILL in stages else None, stages.get(ENCODE, ()))

    def begun(self, number: int, now: float) -> None:
        """See `Router.begun`."""
        found = self._open[number]
        found.answering.begun()
        for part in found.others:
            part.begun()
            part.booking.ended()
        self._profile.answered(found.decision, ttft_s=now - found.answering.booking.at)

    def ended(self, number: int, *, tpot_s: float | None = None, n_output: int | None = None) -> None:
        """See `Router.ended`."""
        found = self._open.pop(number)
        for part in (found.answering, *found.others):
            part.booking.ended()
        self._profile.ended(found.decision, tpot_s=tpot_s, n_output=n_output)

    def published(self, server: str, batch: EventBatch) -> None:
        """Apply a batch as in production: encoded by the engine, decoded by the core."""
        if self._wants_events:
            self.atlas.apply(server, 0, self._core.decode_batch(self._encode(batch)))
            self._predictions.confirm(server, self.atlas.ledger(server, 0))

    def _book(self, decision: Decision, view: RequestView, prefix: Prefix, *, computes: bool) -> _Part:
        """Book a stage on the server that was picked for it, as the dispatcher of production does."""
        best, now = decision.best, view.now
        tokens = best.uncached_tokens(view) if computes else 0
        booking = self.in_flight.book(best.name, tokens=tokens, now=now)
        if not computes:
            return _Part(booking, None)
        self.atlas.routed(best.name, prefix, best.prefix)
        return _Part(booking, self._predictions.routed(best, prefix, now=now))

    def _candidates(self, request: RouteRequest, prefix: Prefix) -> Candidates:
        matches = self._matches(prefix, now=request.now)
        return Candidates.of([
            Candidate(
                name=server,
                address=server,
                labels=labels,
                load=load,
                prefix=matches.get(server),
                in_flight=self.in_flight.of(server),
            )
            for (server, load), labels in zip(request.loads.items(), self._directory.labels, strict=True)
        ])  # fmt: skip

    def _matches(self, prefix: Prefix, *, now: float) -> dict[str, PrefixMatch]:
        columns = self._predictions.matches(prefix, self._directory, now=now)
        if columns is None:
            return {}
        rows = columns.known_rows()
        return {
            self._directory.names[row]: match for row, match in zip(rows, columns.matches(rows), strict=True)
        }

    def _follow(self, server: str, fleet: FleetSpec, source: TierSource | None, fastest: TierConfig) -> None:
        self.atlas.add(server)
        if fastest.lru_capacity_per_server == "auto":
            self.atlas.set_capacity(server, FASTEST, fleet.gpu_blocks)
        if source is TierSource.ROUTING:
            for ledger in self.atlas.ledgers(server):
                ledger.without_events()
                ledger.use_block_size(fleet.block_size)


def _headers(request: RouteRequest) -> dict[str, str]:
    headers, slo = {SESSION_HEADER: request.session}, request.slo
    if slo is not None and slo.ttft_ms is not None:
        headers[TTFT_HEADERS[0]] = f"{slo.ttft_ms}"
    if slo is not None and slo.tpot_ms is not None:
        headers[TPOT_HEADERS[0]] = f"{slo.tpot_ms}"
    return headers
