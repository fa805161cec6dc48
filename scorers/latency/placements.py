"""Costs of the placements of a request: each decode server alone, and each pair of a prefill and a decode server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import mul
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, field

from ..core.candidates import UPDATED_AT, Candidates
from ..core.columns import FloatArray, Mask, RowArray
from ..core.model import RequestView
from ..core.params import PluginParams
from ..core.placement_option import PlacementOption
from ..core.topology import Level
from .joint import JointModel, Weighed
from .lines import ADAPTER, ATTENTION, BATCH, MEMORY, N_FEATURES, OVERHEAD, PREFILL, QUEUE
from .pair_arithmetic import Answering, Pairs, PlacementNumbers
from .pair_operations import placement_sums
from .params import LatencyCostParams, Positive

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


class PlacementParams(LatencyCostParams, frozen=True):
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
        least: cost of the best placement of each endpoint that answers, shape (d).
    """

    weighed: Weighed
    alone: FloatArray
    pairs: FloatArray | None
    decoding: FloatArray
    memory: FloatArray
    others_alone: FloatArray
    others_pairs: FloatArray
    least: FloatArray

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
        own: list[float] = expected.costs[:, column if expected.costs.shape[1] > 1 else 0].tolist()
        terms = _first_terms(list(map(mul, own, expected.features[:, column].tolist())))
        return PlacementOption(
            None,
            expected.candidates.name(column),
            self._named(terms, (0.0, 0.0, 0.0), column, float(self.others_alone[column])),
        )

    def _pair_option(self, row: int, column: int) -> PlacementOption:
        weighed, pairs = self.weighed, self.weighed.pairs
        if pairs is None:
            raise LookupError("no pair was weighed")
        own: list[float] = pairs.costs[:, row if pairs.costs.shape[1] > 1 else 0].tolist()
        terms = _first_terms(list(map(mul, own, pairs.features[:, row].tolist())))
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
    params: PlacementParams,
    model: JointModel,
    request: RequestView,
    decode: Candidates,
    prefill: Candidates,
    is_apart: Mask | None = None,
) -> PlacementCosts:
    """Return the costs of all placements of a request.

    `cost = time to first token + decodeWeight * time to generate + what others wait longer + residencyMs * utilization`

    Args:
        params: weights of the parts.
        model: predicts the times.
        request: the request.
        decode: endpoints that can answer, at least one.
        prefill: endpoints that can compute its prompt for others; none if pairs are not to be compared.
        is_apart: for which of those that answer another may compute the prompt, shape (d); None for all.
    Cost: O(prefill * decode), and some 60 operations on columns.
    """
    weighed = model.weigh(request, decode, prefill)
    alone, pairs = weighed.alone, weighed.pairs
    numbers = PlacementNumbers(
        params.decode_weight * model.alone.lengths.mean(request.model),
        params.decode_weight,
        params.residency_ms,
        params.price_factor,
        params.max_price,
        model.alone.work_tokens,
        model.answered_per_ms.at(request.now),
        model.computed_per_ms.at(request.now),
    )
    n, d = len(prefill) if pairs is not None else 0, len(decode)
    sums, others_ms, pairs_ms = np.empty((5, d)), np.empty(n), np.empty((n, d))
    placement_sums(
        Answering(
            alone.features, alone.costs, alone.ttft_ms, weighed.tpot_ms, decode.state, _rows_of(decode)
        ),
        Pairs(pairs.features, pairs.costs, _known_first(pairs.ttft_ms, prefill, decode), _rows_of(prefill))
        if pairs is not None
        else None,
        is_apart,
        numbers,
        sums,
        others_ms,
        pairs_ms,
    )
    of_alone, decoding, memory, others_alone, least = sums
    return PlacementCosts(
        weighed,
        of_alone,
        pairs_ms if pairs is not None else None,
        decoding,
        memory,
        others_alone,
        others_ms,
        least,
    )


def _known_first(ttft_ms: FloatArray, prefill: Candidates, decode: Candidates) -> FloatArray:
    """Return the times of pairs, infinite with a prefill server of unknown load beside any server of known load, see `known_first`."""
    is_unknown = np.isnan(prefill.state[UPDATED_AT])
    if not is_unknown.any() or (is_unknown.all() and np.isnan(decode.state[UPDATED_AT]).all()):
        return ttft_ms  # as nearly always
    return np.where(is_unknown[:, np.newaxis], math.inf, ttft_ms)


def _rows_of(candidates: Candidates) -> RowArray:
    rows = candidates.rows
    return rows if rows is not None else np.arange(len(candidates))  # None: a filter kept all


def _first_terms(terms: list[float]) -> tuple[float, float, float, float]:
    """Return overhead, queue, prefill and load of the terms of a time to first token."""
    return (
        terms[OVERHEAD] + terms[BATCH] + terms[ADAPTER],
        terms[QUEUE] + terms[MEMORY],
        terms[PREFILL] + terms[ATTENTION],
        sum(terms[N_FEATURES:]),
    )
