"""Router by a configuration, with the index, scorers and picker of production."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import msgspec

from ...configs.schema import KVAtlasConfig, TierConfig
from ...fleet.in_flight import Booking, InFlight
from ...fleet.predictions import Predictions
from ...fleet.replicas.knowledge import Knowledge
from ...fleet.settings import tier_specs
from ...indexer.atlas import Atlas
from ...indexer.factory import IndexCore
from ...indexer.holders import FASTEST
from ...indexer.match import PrefixMatch
from ...indexer.predicted import Prediction
from ...indexer.prefix import Prefix
from ...indexer.tiers import TierSource, TierTable
from ...routing.plan.plan import make_plan
from ...scorers.core.base import Rng
from ...scorers.core.candidates import Candidates, Directory
from ...scorers.core.decision import ENCODE, PREFILL, Decision, Origin
from ...scorers.core.model import Candidate, Load, RequestView
from ...scorers.core.scheduler import Deciding
from ...scorers.core.slo import TPOT_HEADERS, TTFT_HEADERS
from ..kv_events import EventBatch
from .fleet_spec import FleetSpec
from .router import OtherStages, RouteRequest

SESSION_HEADER = "x-session-id"
"""Header from which `session-affinity-scorer` reads the session by default."""


class Decided(NamedTuple):
    """A request as scorers saw it, its block keys, and the decision on it."""

    view: RequestView
    prefix: Prefix
    decision: Decision

    def instead(self, server: str) -> Decided:
        """Return the same as if this server had been picked, which must not be dropped."""
        kept = self.decision.kept
        row = kept.row(server)
        if row is None:
            raise LookupError(f"{server} is dropped")
        decision = msgspec.structs.replace(self.decision, picked=(server,), row=row, chosen=kept[row])
        return self._replace(decision=decision)


@dataclass(frozen=True, slots=True)
class _Part:
    """One stage of a request on one server."""

    booking: Booking
    prediction: Prediction | None


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
        knowledge: shares what this router knows with others; None if it is alone.
        draws: returns random numbers for a request in place of `rng`; None for that.

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
        knowledge: Knowledge | None = None,
        draws: Callable[[RouteRequest], Rng] | None = None,
    ) -> None:
        plan = make_plan(config)
        specs = tier_specs(plan.config.tiers)
        self._profile = profile or plan.profile
        self._draws, self._rng, self._core = draws, rng.random, core
        self.atlas = Atlas(tiers=TierTable(specs), seed=config.index.hash_seed, core=core)
        predicted = plan.config.predictions
        self._predictions = Predictions(self.atlas, ttl_s=predicted.ttl if predicted.enabled else None)
        self.in_flight = InFlight(knowledge.bookings if knowledge is not None else None)
        if knowledge is not None:
            knowledge.follow(self.atlas, self._predictions)
            knowledge.use(self._profile.shared)
        self._open: dict[int, _Open] = {}
        self._loads: dict[str, Load] = {}
        """By server, the newest load with what the index knew then."""
        self._wants_events = any(spec.source in (None, TierSource.EVENTS) for spec in specs)
        self._directory = Directory(fleet.names, fleet.names, fleet.labels)
        self._encode = msgspec.msgpack.Encoder().encode
        for server in fleet.names:
            self._follow(server, fleet, specs[FASTEST].source, plan.config.tiers[FASTEST])

    def route(self, request: RouteRequest) -> str | None:
        """See `Router.route`."""
        decided = self.decide(request)
        if not decided.decision.picked:
            return None
        self.send(request, decided)
        return decided.decision.picked[0]

    def decide(self, request: RouteRequest) -> Decided:
        """Return the decision on a request, without its effects."""
        prefix = self.atlas.prefix(request.tokens)
        view = RequestView(
            model="",
            now=request.now,
            n_tokens=len(request.tokens),
            headers=_headers(request),
            media=tuple(range(request.n_media)),
            prefix=prefix,
        )
        decision = self._profile.decide(
            view,
            self._candidates(request, prefix),
            rng=self._draws(request) if self._draws is not None else self._rng,
        )
        if request.slo is not None:
            origin = Origin(str(request.number), "", "", 0, "", request.slo)
            decision = msgspec.structs.replace(decision, origin=origin)
        return Decided(view, prefix, decision)

    def send(self, request: RouteRequest, decided: Decided) -> None:
        """Send a request as it was decided: book it, predict its blocks, and have plugins learn from the pick."""
        view, prefix, decision = decided
        self._profile.picked(view, decision)
        answering = self._book(decision, view, prefix, computes=True)
        others = [
            self._book(stage.decision, view, prefix, computes=stage.name == PREFILL)
            for stage in decision.stages
        ]
        self._open[request.number] = _Open(decision, answering, others)

    def other_stages(self, number: int) -> OtherStages:
        """See `Router.other_stages`."""
        stages = {each.name: each.decision.picked for each in self._open[number].decision.stages}
        return OtherStages(stages[PREFILL][0] if PREFILL in stages else None, stages.get(ENCODE, ()))

    def begun(self, number: int, now: float) -> None:
        """See `Router.begun`."""
        found = self._open[number]
        self._begun(found.answering)
        for part in found.others:
            self._begun(part)
            part.booking.ended()
        self._profile.answered(found.decision, ttft_s=now - found.answering.booking.at)

    def _begun(self, part: _Part) -> None:
        part.booking.begun()
        if part.prediction is not None:
            self._predictions.begun(part.prediction)

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
                load=self._seen(server, load),
                prefix=matches.get(server),
                in_flight=self.in_flight.of(server),
            )
            for (server, load), labels in zip(request.loads.items(), self._directory.labels, strict=True)
        ])  # fmt: skip

    def _seen(self, server: str, load: Load | None) -> Load | None:
        """Return the load with what the index knew when it was scraped, or at the first request after that."""
        seen = self._loads.get(server)
        if load is not None and (seen is None or seen.updated_at != load.updated_at):
            seen = msgspec.structs.replace(
                load, gpu_cached_tokens=sum(each.n_gpu_tokens for each in self.atlas.ledgers_of(server))
            )
            self._loads[server] = seen
        return seen if load is not None else None

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
        for ledger in self.atlas.ledgers(server):
            if source is TierSource.ROUTING:
                ledger.without_events()
            ledger.use_block_size(fleet.block_size)  # as engines tell it in their metrics


def _headers(request: RouteRequest) -> dict[str, str]:
    headers, slo = {SESSION_HEADER: request.session}, request.slo
    if slo is not None and slo.ttft_ms is not None:
        headers[TTFT_HEADERS[0]] = f"{slo.ttft_ms}"
    if slo is not None and slo.tpot_ms is not None:
        headers[TPOT_HEADERS[0]] = f"{slo.tpot_ms}"
    return headers
