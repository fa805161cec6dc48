"""Quantities from which the time to first token is predicted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import RequestView
from .accounts import BOOKED, N_AHEAD, SINCE, TOKENS_AHEAD, TOKENS_HELD, WORK

OVERHEAD, QUEUE, PREFILL, ATTENTION, BATCH, MEMORY, ADAPTER = range(7)
"""Lines of `features`; those of tokens to load follow."""

N_FEATURES = 7

ATTENTION_TOKENS = 35_000.0
"""Context at which attention to it costs as much as all else of a prompt token: about that of a model of 32 billion
weights. It is a prior, from which the fit departs."""

MILLION = 1e6
"""Pairs of a token and one before it are counted in millions."""


class Typical(NamedTuple):
    """What is taken for requests that nothing is known of.

    Attributes:
        new_tokens: tokens of a prompt that need blocks of their own on the GPU.
        work_tokens: those of them that are computed.
        residence_ms: milliseconds for which a request holds its blocks.
    """

    new_tokens: float
    work_tokens: float
    residence_ms: float


def features(
    request: RequestView,
    candidates: Candidates,
    accounts: FloatArray,
    *,
    n_tiers: int,
    tokens_per_ms: FloatArray | float,
    typical: Typical,
) -> FloatArray:
    """Return the features whose product with the costs in milliseconds is the expected time to first token.

    Args:
        request: its prompt has 0 tokens if nothing is known of it.
        candidates: the endpoints, with their cached prefixes and their requests in flight.
        accounts: own requests there, see `Accounts`.
        n_tiers: number of configured tiers; loading from the fastest costs nothing.
        tokens_per_ms: prompt tokens that an endpoint computes per millisecond.
        typical: what is taken for requests that nothing is known of.
    Returns:
        shape (7 + slower tiers, n): 1; tokens ahead, less those computed since the first of them began; uncached tokens of
        this request; millions of pairs of such a token and one before it; requests beside it; milliseconds until blocks
        are free, if too few are; 1 where its adapter is not loaded; and the tokens to load from each slower tier.
        Cached tokens are multiplied by the trust in the endpoint's events.
    """
    n_tokens, prefix = request.n_tokens, candidates.prefix
    lines = np.zeros((N_FEATURES + n_tiers - 1, len(candidates)))
    lines[OVERHEAD] = 1.0
    if prefix is None:
        uncached: FloatArray | float = float(n_tokens)
    else:
        tokens_per_block = prefix.block_size * candidates.credit
        uncached = np.maximum(0.0, n_tokens - prefix.usable_blocks * tokens_per_block)
        if n_tiers > 1:
            lines[N_FEATURES:] = prefix.reused_blocks[1:n_tiers] * tokens_per_block
    lines[PREFILL] = uncached
    lines[ATTENTION] = uncached * (n_tokens - uncached / 2.0) / MILLION
    lines[BATCH] = np.fmax(candidates.in_flight_requests, candidates.running)  # NaN is unknown
    lines[QUEUE] = _tokens_ahead(
        request.now, candidates, accounts, tokens_per_ms=tokens_per_ms, tokens_each=typical.work_tokens
    )
    lines[MEMORY] = typical.residence_ms * _missing_memory(
        new_tokens(lines), candidates, accounts, typical.new_tokens
    )
    if candidates.has_adapters:
        lines[ADAPTER] = _must_load(request.model, candidates)
    return lines


def _tokens_ahead(
    now: float,
    candidates: Candidates,
    accounts: FloatArray,
    *,
    tokens_per_ms: FloatArray | float,
    tokens_each: float,
) -> FloatArray:
    """Return the tokens that are computed first: own requests, those of other processes, and those that the engine alone reports."""
    sent, waiting = candidates.in_flight_requests, candidates.waiting
    foreign = np.fmax(0.0, np.fmin(waiting, waiting + candidates.running - sent))  # NaN is unknown
    ahead = accounts[WORK] + np.maximum(0.0, candidates.in_flight_tokens - accounts[BOOKED])
    since_ms = np.where(accounts[N_AHEAD] > 0, now - accounts[SINCE], 0.0) * 1000.0
    tokens: FloatArray = np.maximum(0.0, ahead - since_ms * tokens_per_ms) + foreign * tokens_each
    return tokens


def new_tokens(lines: FloatArray) -> FloatArray:
    """Return the prompt tokens that need blocks of their own on the GPU: those that are computed or loaded.

    Args:
        lines: features, shape (7 + slower tiers, n).
    """
    found: FloatArray = lines[PREFILL] + np.add.reduce(lines[N_FEATURES:], axis=0)
    return found


def _missing_memory(
    n_new: FloatArray, candidates: Candidates, accounts: FloatArray, new_tokens_each: float
) -> FloatArray:
    """Return the part of the GPU blocks that must become free before this request begins; 0 if that is unknown.

    The blocks in use and the requests that hold them show what part of the memory a new prompt token takes. Blocks that
    several requests share are counted for the first of them.
    """
    used, ahead = candidates.kv_utilization, accounts[N_AHEAD]
    others = np.fmax(0.0, candidates.running + ahead - candidates.in_flight_requests)
    held = accounts[TOKENS_HELD] + others * new_tokens_each
    wanted = accounts[TOKENS_AHEAD] + n_new
    missing: FloatArray = np.fmax(0.0, wanted * used / np.maximum(held, 1.0 + n_new) + used - 1.0)
    return missing


def _must_load(model: str, candidates: Candidates) -> FloatArray:
    """Return 1 where the model is an adapter that is not on the GPU: some endpoint knows it, and this one has it not there."""
    held, is_adapter = np.zeros(len(candidates)), False
    for row, adapters in enumerate(candidates.adapters):
        if adapters is None:
            continue
        if model in adapters.active or model in adapters.on_gpu or model in adapters.recent:
            held[row], is_adapter = 1.0, True
        elif model in adapters.waiting or model in adapters.in_memory:
            is_adapter = True
    return 1.0 - held if is_adapter else np.zeros(len(candidates))
