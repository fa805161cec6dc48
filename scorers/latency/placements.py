"""Costs of the placements of a request: each decode server alone, and each pair of a prefill and a decode server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, field

from ..core.candidates import Candidates
from ..core.columns import FloatArray, unknown_as_zero
from ..core.model import RequestView
from ..core.params import PluginParams
from ..core.placement_option import PlacementOption
from ..core.topology import Level
from .features import ADAPTER, ATTENTION, BATCH, MEMORY, N_FEATURES, OVERHEAD, PREFILL, QUEUE
from .fleet_cost import FleetCostParams
from .joint import JointModel, Weighed
from .params import Positive

TERMS = (
    "overhead", "queue", "prefill", "load", "transfer", "wait", "step", "decoding", "others", "memory"
)  # fmt: skip
"""Parts of a cost. The first seven are the time to first token."""


class TransferParams(PluginParams, frozen=True):
    """`transfer` of `joint-cost-handler`: priors of the speed that is learned."""

    gigabits_per_second: Positive = 100.0
    """Bandwidth between a prefill server and a decode server."""
    latency_ms: Annotated[float, Meta(ge=0)] = 5.0
    """Milliseconds of a transfer beside what its bytes take."""
    kv_bytes_per_token: Annotated[float, Meta(ge=0)] = 0.0
    """Bytes of KV state per token; 0: those of the model, or 262144 if they are not known."""
    only_missing: bool = True
    """Whether blocks that the decode server has on its GPU are not transferred, as with nixlv2; false: the whole prompt is."""
    level: Level = "zone"
    """Level of the topology between whose places a speed is learned."""
    topology_producer_name: str = ""
    """Name of a `topology-extractor` in `plugins`; empty: the usual labels."""


class PlacementParams(FleetCostParams, frozen=True):
    """Parameters of the costs of placements; those of times are the priors of the fits."""

    price_factor: Annotated[float, Meta(ge=0)] = 0.5
    """Factor of the price of work; 0 makes each request look after itself alone."""
    max_price: Annotated[float, Meta(ge=0)] = 15.0
    """Highest price of a millisecond of work, in milliseconds of waiting."""
    residency_ms: Annotated[float, Meta(ge=0)] = 300.0
    """Milliseconds that blocks on a full endpoint cost others; on one that is half full they cost half as much."""
    decode_weight: Annotated[float, Meta(ge=0)] = 0.15
    """Milliseconds to the first token that a millisecond of generating is worth."""
    transfer: TransferParams = field(default_factory=TransferParams)
    """Priors of the speed of transfers."""


class PlacementCosts(NamedTuple):
    """Costs of the placements of one request, in milliseconds; p endpoints compute for others, d answer.

    Attributes:
        weighed: the times that they are made of.
        alone: of each endpoint that answers alone, shape (d).
        pairs: of each pair, shape (p, d), infinite if it is no choice; None if there is none.
        decoding: part of both that is generating, shape (d).
        memory: part of both that is the blocks held, shape (d).
        others_alone: part of `alone` that others wait longer, shape (d).
        others_pairs: part of `pairs` that others wait longer, shape (p).
    """

    weighed: Weighed
    alone: FloatArray
    pairs: FloatArray | None
    decoding: FloatArray
    memory: FloatArray
    others_alone: FloatArray
    others_pairs: FloatArray

    @property
    def least(self) -> FloatArray:
        """Cost of the best placement of each endpoint that answers, shape (d)."""
        if self.pairs is None:
            return self.alone
        least: FloatArray = np.minimum(self.alone, np.minimum.reduce(self.pairs, axis=0))
        return least

    def best_pairs(self, column: int) -> FloatArray | None:
        """Return the costs of the pairs of one endpoint that answers; None if it costs less alone."""
        if self.pairs is None:
            return None
        costs: FloatArray = self.pairs[:, column]
        return costs if float(np.minimum.reduce(costs)) < float(self.alone[column]) else None

    def options(self, row: int | None, column: int) -> Iterator[PlacementOption]:
        """Yield a placement, the best of the other kind, and the best other pair; `row` is None for one alone."""
        pairs = self.pairs
        yield self._alone_option(column) if row is None else self._pair_option(row, column)
        if pairs is None:
            return
        if row is not None:
            yield self._alone_option(int(self.alone.argmin()))
            pairs = pairs.copy()
            pairs[row, column] = math.inf
        best = int(pairs.argmin())
        if math.isfinite(pairs.flat[best]):
            yield self._pair_option(*divmod(best, pairs.shape[1]))

    def _alone_option(self, column: int) -> PlacementOption:
        expected = self.weighed.alone
        terms = _first_terms(expected.terms_ms[:, column].tolist())
        return PlacementOption(
            None,
            expected.candidates.name(column),
            self._named(terms, (0.0, 0.0, 0.0), column, float(self.others_alone[column])),
        )

    def _pair_option(self, row: int, column: int) -> PlacementOption:
        weighed, pairs = self.weighed, self.weighed.pairs
        if pairs is None:
            raise LookupError("no pair was weighed")
        own = pairs.costs[:, row if pairs.costs.shape[1] > 1 else 0]
        terms = _first_terms((own * pairs.features[:, row]).tolist())
        return PlacementOption(
            weighed.prefill.name(row),
            weighed.alone.candidates.name(column),
            self._named(terms, pairs.tail_ms(row, column), column, float(self.others_pairs[row])),
        )

    def _named(
        self,
        first: tuple[float, float, float, float],
        tail: tuple[float, float, float],
        column: int,
        others: float,
    ) -> dict[str, float]:
        rest = float(self.decoding[column]), others, float(self.memory[column])
        return dict(zip(TERMS, (*first, *tail, *rest), strict=True))


def placement_costs(
    params: PlacementParams, model: JointModel, request: RequestView, decode: Candidates, prefill: Candidates
) -> PlacementCosts:
    """Return the costs of all placements of a request.

    `cost = time to first token + decodeWeight * time to generate + what others wait longer + residencyMs * utilization`

    Args:
        params: weights of the parts.
        model: predicts the times.
        request: the request.
        decode: endpoints that can answer, at least one.
        prefill: endpoints that can compute its prompt for others; none if pairs are not to be compared.
    Cost: some 80 operations on columns, and 15 on a matrix of pairs.
    """
    weighed = model.weigh(request, decode, prefill)
    alone, pairs = weighed.alone, weighed.pairs
    n_tokens = model.alone.lengths.mean(request.model)
    decoding = params.decode_weight * n_tokens * weighed.tpot_ms
    memory = params.residency_ms * unknown_as_zero(decode.kv_utilization)
    work_ms = _work_ms(alone.features, alone.costs)
    # a prompt delays those that come while it is ahead, and each response that is generated in the same steps
    typical, per_ms = model.alone.work_tokens, model.answered_per_ms.at(request.now)
    others_alone = _waits_ms(params, alone.terms_ms, work_ms, per_ms, typical * alone.costs[PREFILL])
    others_alone += work_ms * (params.decode_weight * alone.features[BATCH])
    shared = decoding + memory
    of_alone = alone.ttft_ms + shared + others_alone
    if pairs is None:
        return PlacementCosts(weighed, of_alone, None, decoding, memory, others_alone, others_alone[:0])
    work_ms = _work_ms(pairs.features, pairs.costs)
    terms_ms = pairs.costs * pairs.features
    per_ms = model.computed_per_ms.at(request.now)
    others_pairs = _waits_ms(params, terms_ms, work_ms, per_ms, typical * pairs.costs[PREFILL])
    of_pairs = pairs.ttft_ms + shared + others_pairs[:, np.newaxis]
    _exclude_same(of_pairs, prefill, decode)
    return PlacementCosts(weighed, of_alone, of_pairs, decoding, memory, others_alone, others_pairs)


def _waits_ms(
    params: FleetCostParams, terms_ms: FloatArray, work_ms: FloatArray, per_ms: float, typical_ms: FloatArray
) -> FloatArray:
    """Return how much longer others wait for work on each endpoint, in milliseconds.

    Those wait that come while the work is ahead of them: during the mean wait of the pool for all of it, and during the work
    itself for its rest. With a short work their number is that of those that wait (Little's law), as for `FleetCostScorer`.
    If there is another endpoint, nobody waits longer than there: the mean wait, and one typical prompt.

    Args:
        params: factor, and limit of the price of a millisecond of work.
        terms_ms: terms of the times, shape (features, n).
        work_ms: milliseconds of the work, shape (n).
        per_ms: requests that come to all of these endpoints together per millisecond.
        typical_ms: milliseconds of the typical work of a request, shape (n) or (1).
    """
    n = len(work_ms)
    mean_ms = float(np.add.reduce(terms_ms[QUEUE]) + np.add.reduce(terms_ms[MEMORY])) / n
    longest_ms = np.minimum(work_ms, mean_ms + typical_ms) if n > 1 else work_ms
    waits_ms = longest_ms * (params.price_factor * per_ms / n * (mean_ms + work_ms - longest_ms / 2.0))
    found: FloatArray = np.minimum(waits_ms, params.max_price * work_ms)
    return found


def _work_ms(features: FloatArray, costs: FloatArray) -> FloatArray:
    work: FloatArray = costs[PREFILL] * features[PREFILL] + costs[ATTENTION] * features[ATTENTION]
    return work


def _first_terms(terms: list[float]) -> tuple[float, float, float, float]:
    """Return overhead, queue, prefill and load of the terms of a time to first token."""
    return (
        terms[OVERHEAD] + terms[BATCH] + terms[ADAPTER],
        terms[QUEUE] + terms[MEMORY],
        terms[PREFILL] + terms[ATTENTION],
        sum(terms[N_FEATURES:]),
    )


def _exclude_same(costs: FloatArray, computing: Candidates, receiving: Candidates) -> None:
    """Make pairs of an endpoint with itself no choice: that is the endpoint alone."""
    rows, columns = computing.rows, receiving.rows
    if rows is None:  # a filter kept all, so that the others are among them
        rows = np.arange(len(computing))
    if columns is None:
        columns = np.arange(len(receiving))
    costs[rows[:, np.newaxis] == columns] = math.inf
