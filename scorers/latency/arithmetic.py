"""Specification of the arithmetic of the cost model, in numpy and Python; see `operations`."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from ..core.candidates import (
    CREDIT,
    GONE,
    GPU_CACHED,
    GPU_TOKENS,
    KV_UTILIZATION,
    REQUESTS,
    RUNNING,
    TOKENS,
    WAITING,
)
from ..core.columns import FloatArray, IntArray, unknown_as_zero
from .copy_arithmetic import copy_savings
from .lines import (
    ADAPTER,
    ATTENTION,
    BATCH,
    BOOKED,
    MEMORY,
    MILLION,
    N_AHEAD,
    N_FEATURES,
    OVERHEAD,
    PLACED,
    PLACED_AT,
    PLACED_NEW,
    PREFILL,
    QUEUE,
    SINCE,
    TOKENS_AHEAD,
    TOKENS_HELD,
    TOKENS_IN_USE,
    WORK,
)

Held: TypeAlias = tuple[IntArray, IntArray | None, IntArray | int]
"""Figures and block size of `PrefixColumns`, and `reused_blocks` if these are not in the order of tiers."""

RequestNumbers: TypeAlias = tuple[float, float, float, float, float, float]
"""Monotonic seconds, tokens of the prompt, and what is typical of requests, see `features.Typical`."""

PriceNumbers: TypeAlias = tuple[float, float, float, float, float, float, float, float, float]
"""Tokens of the prompt and of a typical request, factor and limit of the price, milliseconds for all blocks of a full endpoint, what
each displaced token costs as a part of the mean time to compute one, the part of the price that follows those that wait there, the
cost that scores 0.5, and how many output tokens count."""

DisplacementNumbers: TypeAlias = tuple[float, float, float, float]
"""Monotonic seconds, the seconds in which placed tokens fade, and `SPREAD` and `LEAST_DISPLACED` of `fleet-cost-scorer`."""

UNSURE = 0.02
"""Part of the GPU blocks within which a wait for blocks is not expected: requests that end since the scrape free as many."""

ALIKE = 1.25
"""Times per output token up to this multiple of the least count as equal: learned paces of equal endpoints differ as much."""

KEPT = 4.0
"""Times the tokens of a GPU that the requests of an endpoint may need before a part of what it holds counts as lost. Requests that wait in
one queue find what those before them bring, as long as few others come in between. By replay: with 2, recorded conversations in an overload
lose prefixes that they would have found; up to 6, a queue that was placed at random grows on all endpoints alike and not on a few."""

COST_PARTS = ("overhead", "queue", "prefill", "load", "others", "memory", "copy", "response")
"""Parts of a cost. `overhead` includes the batch and the adapter, `queue` the wait for blocks as far as it counts, `prefill` attention.
`others` is the longer wait of others, `memory` what blocks cost them that the request holds or displaces, and `copy` what the
computed prompt saves them, as a negative number; `response` is the longer time for output tokens that counts."""

Quantities: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
"""Features, the costs of their units in milliseconds, and the sums of their products by endpoint."""


def cost_quantities(
    state: FloatArray,
    accounts: FloatArray,
    costs: FloatArray,
    pace: FloatArray | float,
    held: Held | None,
    adapter: FloatArray | None,
    numbers: RequestNumbers,
    n_loads: int,
) -> Quantities:
    """Return `features.features`.

    Args:
        state: see `Candidates`, shape (10, n).
        accounts: see `Accounts.columns`, shape (21, n) or (21, 1).
        costs: milliseconds per unit of each feature, shape (d, n) or (d, 1), with any further lines.
        pace: factors of the costs, shape (n), or one for all.
        held: what the endpoints hold of the prompt, None if nothing is known of it.
        adapter: 1 for endpoints that must load an adapter, None if none must.
        numbers: of the request.
        n_loads: number of slower tiers.
    Returns:
        the costs have the shape (d, n).
    """
    now, n_tokens, typical_tokens, typical_work, residence_ms, output_tokens = numbers
    costs = costs[: N_FEATURES + n_loads] * np.broadcast_to(np.float64(pace), state.shape[1])
    tokens_per_ms = 1.0 / costs[PREFILL]
    lines = np.zeros((N_FEATURES + n_loads, state.shape[1]))
    lines[OVERHEAD] = 1.0
    uncached: FloatArray | float = float(n_tokens)
    if held is not None:
        figures, reused, block_size = held
        tokens_per_block = block_size * state[CREDIT]
        n_tiers = (len(figures) - 3) // 2
        uncached = np.maximum(0.0, n_tokens - figures[2 * n_tiers] * tokens_per_block)
        reused = _reused(figures, n_tiers) if reused is None else reused
        lines[N_FEATURES:] = reused[1 : 1 + n_loads] * tokens_per_block
        on_gpu = n_tokens - uncached - _total(lines[N_FEATURES:])
        uncached = uncached + _part_lost(state, accounts) * np.maximum(0.0, on_gpu)
    lines[PREFILL] = uncached
    lines[ATTENTION] = uncached * (n_tokens - uncached / 2.0) / MILLION
    lines[BATCH] = np.fmax(state[REQUESTS], running_now(state))  # NaN is unknown
    lines[QUEUE] = _tokens_ahead(now, state, accounts, tokens_per_ms, tokens_each=typical_work)
    new_tokens = uncached + _total(lines[N_FEATURES:])
    lines[MEMORY] = residence_ms * _missing_memory(
        n_tokens, new_tokens, state, accounts, typical_tokens, output_tokens
    )
    if adapter is not None:
        lines[ADAPTER] = adapter
    return lines, costs, cost_totals(lines, costs)


def cost_totals(features: FloatArray, costs: FloatArray) -> FloatArray:
    """Return the sums of products by endpoint, added line by line, so that they do not depend on the endpoint's row.

    Args:
        features: shape (d, n).
        costs: shape (d, n) or (d, 1).
    """
    totals = np.zeros(features.shape[1])
    for cost, line in zip(costs, features, strict=True):
        totals += cost * line
    return totals


def fleet_costs(
    ttft_ms: FloatArray,
    features: FloatArray,
    costs: FloatArray,
    accounts: FloatArray,
    state: FloatArray,
    displaced: FloatArray,
    token_ms: FloatArray,
    sharing: FloatArray,
    numbers: PriceNumbers,
) -> FloatArray:
    """Return the parts of a cost in the order of `COST_PARTS`, the cost, and its score; shape (10, n).

    Args:
        ttft_ms: milliseconds to first token, by endpoint.
        features: see `cost_quantities`.
        costs: milliseconds per unit of each.
        accounts: see `cost_quantities`.
        state: see `Candidates`.
        displaced: tokens that the uncached ones displace there.
        token_ms: milliseconds per output token there, shape (n), or (1) if that is the same everywhere.
        sharing: see `copy_savings`.
        numbers: of the price, see `FleetCostScorer`.
    """
    n_tokens, typical_tokens, factor, most, residency_ms, lost, here, scale_ms, n_output = numbers
    lost_ms = lost * _mean(costs[PREFILL])
    slower_ms = np.maximum(0.0, token_ms - ALIKE * np.minimum.reduce(token_ms, initial=np.inf))
    response_ms = n_output * slower_ms + np.zeros(len(ttft_ms))
    n_anywhere = float(np.add.reduce(state[TOKENS])) / max(1, len(ttft_ms)) / typical_tokens
    shifted = (np.count_nonzero(features[MEMORY] > 0.0) - 1) / max(1, len(ttft_ms) - 1)  # of the others
    shifted *= shifted
    price_anywhere = (1.0 - here) * min(factor * n_anywhere, most)
    price = price_anywhere + here * (factor * np.fmax(accounts[N_AHEAD], state[WAITING]))
    work_ms = costs[PREFILL] * features[PREFILL] + costs[ATTENTION] * features[ATTENTION]
    others_ms = price * work_ms
    new_tokens = features[PREFILL] + _total(features[N_FEATURES:])
    taken = _taken(n_tokens, new_tokens, accounts) * _per_token(state[GPU_TOKENS])
    displaced_ms = lost_ms * displaced
    held_from = unknown_as_zero(used_now(state)) + _waiting_again(state, accounts)
    memory_ms = residency_ms * held_from * taken + displaced_ms
    terms = costs * features
    cost_ms = ttft_ms - shifted * terms[MEMORY] + others_ms + memory_ms + response_ms
    spent_ms = work_ms + others_ms + displaced_ms
    saved_ms = copy_savings(cost_ms, spent_ms, features, costs, n_tokens, sharing)
    cost_ms = cost_ms - saved_ms
    return np.stack(
        [
            terms[OVERHEAD] + terms[BATCH] + terms[ADAPTER],
            terms[QUEUE] + (1.0 - shifted) * terms[MEMORY],
            terms[PREFILL] + terms[ATTENTION],
            _total(terms[N_FEATURES:]),
            others_ms,
            memory_ms,
            0.0 - saved_ms,
            response_ms,
            cost_ms,
            1.0 / (1.0 + cost_ms / scale_ms),
        ]
    )


def displaced_tokens(
    features: FloatArray, accounts: FloatArray, state: FloatArray, numbers: DisplacementNumbers
) -> FloatArray:
    """Return the tokens that the uncached ones displace on each endpoint, see `FleetCostScorer`; shape (n).

    A new prompt brings others of its prefix, which fill up what is free, so that it counts whole. So do all where the index
    knows of nothing although prompts were sent there: that engine's events do not come.

    Args:
        features: see `cost_quantities`.
        accounts: see `cost_quantities`.
        state: see `Candidates`.
        numbers: see `DisplacementNumbers`.
    """
    now, fade_s, spread, least = numbers
    uncached, cached = features[PREFILL], state[GPU_CACHED]
    is_new = same_everywhere(uncached)
    more = _more_placed(len(uncached), accounts, PLACED_NEW if is_new else PLACED, now, fade_s)
    displaced: FloatArray = uncached + np.minimum.reduce(uncached, initial=np.inf) * np.clip(
        spread * more, -1.0, 1.0
    )  # with less than -1, new tokens would displace fewer than none
    if is_new:
        return displaced
    lacking = (uncached + cached - state[GPU_TOKENS]) / np.maximum(1.0, uncached)
    is_untold = (cached == 0.0) & (accounts[PLACED] > 0.0)
    displaced *= np.where(is_untold, 1.0, np.fmax(least, np.fmin(lacking, 1.0)))  # NaN is unknown
    return displaced


def same_everywhere(uncached: FloatArray) -> bool:
    """Return whether a prompt is new: no endpoint has more of it than another; False for a single one. Cost: O(n)."""
    return len(uncached) > 1 and bool(np.minimum.reduce(uncached) >= np.maximum.reduce(uncached))


def running_now(state: FloatArray) -> FloatArray:
    """Return the requests that run on each endpoint: those of the last scrape less the known ones that have ended since; shape (n)."""
    left: FloatArray = np.maximum(0.0, state[RUNNING] - state[GONE])
    return left


def used_now(state: FloatArray) -> FloatArray:
    """Return the part of the GPU blocks that these hold, if they hold as many each as those of the scrape did; shape (n)."""
    running: FloatArray = state[RUNNING]
    used: FloatArray = state[KV_UTILIZATION]
    return used * np.where(running > 0.0, running_now(state) / np.maximum(1.0, running), 1.0)


def _reused(figures: IntArray, n_tiers: int) -> IntArray:
    """Return the usable blocks by the fastest tier that has them, see `PrefixColumns.reused_blocks`."""
    union = figures[n_tiers : 2 * n_tiers]
    reused, left = np.empty_like(union), figures[2 * n_tiers]
    for tier, held in enumerate(union):
        reused[tier] = np.minimum(held, left)
        left = left - reused[tier]
    return reused


def _part_lost(state: FloatArray, accounts: FloatArray) -> FloatArray:
    """Return the part of what a GPU holds of a prompt that is displaced before its turn comes; shape (n)."""
    needed, room = accounts[TOKENS_AHEAD] + accounts[TOKENS_HELD], KEPT * state[GPU_TOKENS]
    return np.where((room > 0.0) & (needed > room), 1.0 - room / np.maximum(1.0, needed), 0.0)


def _tokens_ahead(
    now: float, state: FloatArray, accounts: FloatArray, tokens_per_ms: FloatArray, *, tokens_each: float
) -> FloatArray:
    """Return the tokens that are computed first: own requests, those of other processes, and those that the engine alone reports.

    Nothing is computed of those that wait in the engine, however long they have waited.
    """
    sent, waiting, running = state[REQUESTS], state[WAITING], running_now(state)
    foreign = _waiting_unknown(state)
    ahead = accounts[WORK] + np.maximum(0.0, state[TOKENS] - accounts[BOOKED])
    since_ms = np.where(accounts[N_AHEAD] > 0, now - accounts[SINCE], 0.0) * 1000.0
    untouched = ahead * _part_ahead(np.fmin(waiting, sent - running), accounts)
    tokens: FloatArray = (
        np.maximum(0.0, ahead - untouched - since_ms * tokens_per_ms) + untouched + foreign * tokens_each
    )
    return tokens


def _waiting_unknown(state: FloatArray) -> FloatArray:
    """Return the requests that wait on each endpoint and that the engine alone reports; 0 if that is unknown."""
    waiting = state[WAITING]
    unknown: FloatArray = np.fmax(0.0, np.fmin(waiting, waiting + running_now(state) - state[REQUESTS]))
    return unknown


def _waiting_again(state: FloatArray, accounts: FloatArray) -> FloatArray:
    """Return the requests that wait again because the engine took their blocks back; 0 if that is unknown.

    They wait although their responses have begun, on an endpoint that has no room for one more like those that run there.
    """
    again = np.fmax(0.0, state[WAITING] - _waiting_unknown(state) - accounts[N_AHEAD])
    with_one_more = used_now(state) * (1.0 + 1.0 / np.maximum(1.0, running_now(state)))
    return np.where(with_one_more > 1.0 - UNSURE, again, 0.0)  # NaN is unknown


def _missing_memory(
    n_tokens: float,
    new_tokens: FloatArray,
    state: FloatArray,
    accounts: FloatArray,
    tokens_each: float,
    output_tokens: float,
) -> FloatArray:
    """Return the part of the GPU blocks that must become free before this request begins; 0 if that is unknown.

    Cached blocks that nobody uses are as good as free, and taken when a request finds its prefix there. So this request takes what no
    request there holds of its prompt, and at least what is new on the GPU. Own requests need the blocks of their prompts, whether the
    engine has given them some already or none, and of what it has generated; those that run there beside them have their share of
    those in use. Or all need what the engine uses, if that is more. Those whose response has begun need no more than that: processes
    that do not know of each other count blocks that they share once each. Blocks become free request by request: of n that run, the
    first is expected to end after 1 / (n + 1) of the time in which all do.

    What part of the memory a token takes says the engine, or else the blocks in use with the prompts of the requests that hold them.
    """
    used, running, sent = used_now(state), running_now(state), state[REQUESTS]
    ahead, foreign = accounts[TOKENS_AHEAD], np.fmax(0.0, running - sent)
    begun = accounts[TOKENS_HELD] + np.fmax(0.0, sent - accounts[N_AHEAD]) * output_tokens
    told = _per_token(state[GPU_TOKENS])
    shown = begun + ahead - ahead * _part_ahead(sent - running, accounts) + foreign * tokens_each
    per_token = np.where(told > 0.0, told, used / np.maximum(shown, 1.0 + n_tokens))
    known = np.minimum(begun * per_token + used * foreign / np.maximum(1.0, running), used)
    taken = _taken(n_tokens, new_tokens, accounts) * per_token
    lacking = taken + np.maximum(known + ahead * per_token, used) - 1.0  # NaN is unknown
    return np.where(lacking > UNSURE, lacking + used / (running + 1.0), 0.0)


def _taken(n_tokens: float, new_tokens: FloatArray, accounts: FloatArray) -> FloatArray:
    """Return the tokens of a prompt whose blocks nobody else uses, so that they take free ones, as far as that is known."""
    taken: FloatArray = np.fmax(
        np.fmin(new_tokens, n_tokens), n_tokens - accounts[TOKENS_IN_USE]
    )  # NaN is unknown
    return taken


def _more_placed(n: int, accounts: FloatArray, line: int, now: float, fade_s: float) -> FloatArray:
    """Return how much more than the mean was placed on each of `n` endpoints lately, as a part of the mean; 0 if that is 0.

    For a new prompt those prompts count that were new themselves: they bring others of the same prefix there, so that each endpoint
    should have as many.
    """
    faded = [math.exp((at - now) / fade_s) for at in accounts[PLACED_AT].tolist()]
    placed = np.broadcast_to(accounts[line] * np.array(faded), n)
    mean = _mean(placed)
    return np.zeros(n) if mean <= 0.0 else placed / mean - 1.0


def _total(lines: FloatArray) -> FloatArray:
    """Return the sums by endpoint, 0 without lines; added in order, which numpy does not do for a single endpoint."""
    return sum(lines, np.zeros(lines.shape[1]))


def _mean(numbers: FloatArray) -> float:
    """Return the mean, 0 of none; added in order, as the native version does."""
    return float(np.add.accumulate(numbers)[-1]) / len(numbers) if len(numbers) else 0.0


def _per_token(gpu_tokens: FloatArray) -> FloatArray:
    """Return the part of the GPU blocks that a token takes; 0 if their number is unknown, which is 0 or NaN."""
    return np.where(gpu_tokens > 0, 1.0 / np.maximum(1.0, gpu_tokens), 0.0)


def _part_ahead(n: FloatArray, accounts: FloatArray) -> FloatArray:
    """Return the part that `n` requests are of those whose response has not begun, 0 to 1; 0 if there are none."""
    n_ahead = accounts[N_AHEAD]
    part: FloatArray = np.fmin(np.fmax(0.0, n) * (1.0 / np.maximum(1.0, n_ahead)), 1.0)
    return np.where(n_ahead > 0, part, 0.0)
