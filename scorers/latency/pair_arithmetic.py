"""Specification of the arithmetic of pairs, in numpy; see `pair_operations`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.candidates import KV_UTILIZATION, RUNNING, UPDATED_AT, WAITING
from ..core.columns import FloatArray, Mask, RowArray, unknown_as_zero
from .lines import (
    ATTENTION,
    BATCH,
    BUSY_AT,
    MEMORY,
    PREFILL,
    QUEUE,
    READY_AT,
    RECEIVED_AT,
    RECEIVING_AT,
    SENT_AT,
    WORK,
)

TRANSFER, WAIT, STEP = range(3)
"""Costs of a pair after those of the endpoint that computes."""


class Computing(NamedTuple):
    """Endpoints that compute prompts for others; p of them.

    Attributes:
        features: of one request, shape (features, p); the line of the queue gets the tokens ahead.
        costs: milliseconds per unit of each, shape (features, p) or (features, 1).
        accounts: see `Accounts.columns`.
        state: see `Candidates`.
        tail: costs of transfer, wait and step, shape (3, p) or (3, 1).
    """

    features: FloatArray
    costs: FloatArray
    accounts: FloatArray
    state: FloatArray
    tail: FloatArray


class Receiving(NamedTuple):
    """Endpoints that answer; d of them.

    Attributes:
        features: of one request, if they compute its prompt; shape (features, d).
        costs: as of `Computing`.
        accounts: see `Accounts.columns`.
        tokens: to transfer, shape (d).
        tpot_ms: milliseconds per output token, shape (d).
    """

    features: FloatArray
    costs: FloatArray
    accounts: FloatArray
    tokens: FloatArray
    tpot_ms: FloatArray


class Answering(NamedTuple):
    """Endpoints that answer, if they compute the prompt too; d of them.

    Attributes:
        features: as of `Receiving`.
        costs: as of `Receiving`.
        ttft_ms: milliseconds to first token, shape (d).
        tpot_ms: as of `Receiving`.
        state: see `Candidates`.
        rows: of the directory, shape (d).
    """

    features: FloatArray
    costs: FloatArray
    ttft_ms: FloatArray
    tpot_ms: FloatArray
    state: FloatArray
    rows: RowArray


class Pairs(NamedTuple):
    """Pairs of p endpoints that compute.

    Attributes:
        features: as of `Computing`, with the tokens ahead.
        costs: as of `Computing`.
        ttft_ms: milliseconds to first token of each pair, shape (p, d).
        rows: of the directory, shape (p).
    """

    features: FloatArray
    costs: FloatArray
    ttft_ms: FloatArray
    rows: RowArray


class PairNumbers(NamedTuple):
    """Monotonic seconds, milliseconds of a transfer beside its tokens, and seconds until a request is part of what is reported."""

    now: float
    latency_ms: float
    settle_s: float


class PlacementNumbers(NamedTuple):
    """How the parts of a cost count.

    Attributes:
        decoding: of a millisecond per output token.
        decode_weight: of a millisecond by which a response that is generated is delayed.
        residency_ms: milliseconds for the blocks on a full endpoint.
        price_factor: of the price of work.
        max_price: of a millisecond of work.
        typical_tokens: that an endpoint computes for a request.
        answered_per_ms: requests per millisecond to the endpoints that answer.
        computed_per_ms: of them those of which another one computes the prompt.
    """

    decoding: float
    decode_weight: float
    residency_ms: float
    price_factor: float
    max_price: float
    typical_tokens: float
    answered_per_ms: float
    computed_per_ms: float


def pair_times(
    computing: Computing,
    receiving: Receiving,
    speeds: FloatArray,
    numbers: PairNumbers,
    prefill_ms: FloatArray,
    times_ms: FloatArray,
) -> None:
    """Compute the times of all pairs, and add the tokens ahead to the features of those that compute.

    Args:
        computing: the endpoints that compute.
        receiving: those that answer.
        speeds: milliseconds per token of each link, shape (p, d) or (1, 1).
        numbers: of the request and of transfers.
        prefill_ms: gets the milliseconds until the prompt is computed, shape (p).
        times_ms: gets transfer, wait and time to first token of each pair, shape (3, p, d).
    """
    now, accounts, tail = numbers.now, computing.accounts, computing.tail
    planned_ms = np.maximum(0.0, accounts[READY_AT] - now) * 1000.0
    # no more is left than the prompts that may not be computed yet: clients may have gone
    left_ms = np.minimum(planned_ms, accounts[WORK] * computing.costs[PREFILL])
    computing.features[QUEUE] += _ahead_ms(computing, left_ms, numbers) * (1.0 / computing.costs[PREFILL])
    prefill_ms[:] = 0.0
    for cost, line in zip(computing.costs, computing.features, strict=True):
        prefill_ms += cost * line
    transfer_ms = numbers.latency_ms + speeds * receiving.tokens
    sent_ms = (accounts[SENT_AT] - now) * 1000.0 - (planned_ms - left_ms)
    receiving_ms, received_ms = (
        (receiving.accounts[line] - now) * 1000.0 for line in (RECEIVING_AT, RECEIVED_AT)
    )
    start_ms = np.maximum(prefill_ms, sent_ms)[:, np.newaxis]
    network_ms = np.where(start_ms >= receiving_ms, np.maximum(start_ms, received_ms), start_ms)
    costs, features = receiving.costs, receiving.features
    ready_ms = np.maximum(costs[QUEUE] * features[QUEUE] + costs[MEMORY] * features[MEMORY], network_ms)
    wait_ms = ready_ms - prefill_ms[:, np.newaxis]
    first_ms = prefill_ms[:, np.newaxis] + tail[STEP][:, np.newaxis] * receiving.tpot_ms
    times_ms[0], times_ms[1] = transfer_ms, wait_ms
    times_ms[2] = first_ms + tail[TRANSFER][:, np.newaxis] * transfer_ms + tail[WAIT][:, np.newaxis] * wait_ms


def placement_sums(
    answering: Answering,
    computing: Pairs | None,
    is_apart: Mask | None,
    numbers: PlacementNumbers,
    alone: FloatArray,
    others: FloatArray,
    pairs: FloatArray,
) -> None:
    """Add up the costs of all placements of a request.

    Args:
        answering: the endpoints that answer.
        computing: those that compute for others, None if there is no pair.
        is_apart: whether each of those that answer may get the prompt from another, shape (d); None if all may.
        numbers: how the parts count.
        alone: gets the cost of each endpoint alone, its parts for generating, for blocks and for others, and the least cost of
            all placements with it; shape (5, d).
        others: gets the part of pairs that others wait longer, shape (p).
        pairs: gets the cost of each pair, infinite if it is no choice; shape (p, d).
    """
    features, costs = answering.features, answering.costs
    alone[1] = numbers.decoding * answering.tpot_ms
    alone[2] = numbers.residency_ms * unknown_as_zero(answering.state[KV_UTILIZATION])
    work_ms = _work_ms(features, costs)
    alone[3] = _waits_ms(features, costs, work_ms, numbers, numbers.answered_per_ms)
    alone[3] += work_ms * (numbers.decode_weight * features[BATCH])
    shared_ms = alone[1] + alone[2]
    alone[4] = alone[0] = answering.ttft_ms + shared_ms + alone[3]
    if computing is None:
        return
    work_ms = _work_ms(computing.features, computing.costs)
    others[:] = _waits_ms(computing.features, computing.costs, work_ms, numbers, numbers.computed_per_ms)
    pairs[:] = computing.ttft_ms + shared_ms + others[:, np.newaxis]
    pairs[computing.rows[:, np.newaxis] == answering.rows] = math.inf
    if is_apart is not None:
        pairs[:, ~is_apart] = math.inf
    np.minimum(alone[4], np.minimum.reduce(pairs, axis=0), out=alone[4])


def _ahead_ms(computing: Computing, left_ms: FloatArray, numbers: PairNumbers) -> FloatArray:
    """Return the milliseconds until earlier prompts are computed; none if the endpoint reports that it is idle, though it may still send."""
    accounts, state = computing.accounts, computing.state
    is_idle = (state[WAITING] + state[RUNNING] == 0.0) & (
        state[UPDATED_AT] > accounts[BUSY_AT] + numbers.settle_s
    )
    ahead_ms: FloatArray = np.where(is_idle, 0.0, left_ms)
    return ahead_ms


def _work_ms(features: FloatArray, costs: FloatArray) -> FloatArray:
    work: FloatArray = costs[PREFILL] * features[PREFILL] + costs[ATTENTION] * features[ATTENTION]
    return work


def _waits_ms(
    features: FloatArray,
    costs: FloatArray,
    work_ms: FloatArray,
    numbers: PlacementNumbers,
    requests_per_ms: float,
) -> FloatArray:
    """Return how much longer others wait for work on each endpoint.

    Those wait that come while the work is ahead of them: during the mean wait of the pool for all of it, and during the work
    itself for its rest. With a short work their number is that of those that wait (Little's law), as for `FleetCostScorer`.
    If there is another endpoint, nobody waits longer than there: the mean wait, and one typical prompt.
    """
    n = len(work_ms)
    mean_ms = (_sum(costs[QUEUE] * features[QUEUE]) + _sum(costs[MEMORY] * features[MEMORY])) / n
    typical_ms = numbers.typical_tokens * costs[PREFILL]
    longest_ms = np.minimum(work_ms, mean_ms + typical_ms) if n > 1 else work_ms
    each_per_ms = numbers.price_factor * requests_per_ms / n
    waits_ms = longest_ms * (each_per_ms * (mean_ms + work_ms - longest_ms / 2.0))
    found: FloatArray = np.minimum(waits_ms, numbers.max_price * work_ms)
    return found


def _sum(column: NDArray[np.float64]) -> float:
    """Return a sum in the order of the rows; that of numpy has another one."""
    return float(np.add.accumulate(column)[-1])
