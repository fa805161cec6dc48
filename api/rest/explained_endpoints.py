"""The candidates of a decision as answers show them, made from its columns without an object per candidate in between.

Each structure has the members of the model of the same name in `decision_models`, which describes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from math import isfinite

import msgspec
import numpy as np

from ...scorers.core.candidates import TRUSTS, Candidates
from ...scorers.core.columns import FloatArray, shown
from ...scorers.core.decision import Decision
from ...scorers.core.predictions import Predictions
from ...scorers.core.prefix_columns import PrefixColumns, Runs
from ...scorers.core.ratings import Inputs

AGE_DIGITS = 6
"""Decimals of an age in seconds."""


class Run(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """See `RunOut`."""

    tier: str
    blocks: int


class Prefix(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """See `PrefixOut`."""

    rank: int
    usable_tokens: int
    predicted_tokens: int
    tier_tokens: dict[str, int]
    runs: list[Run]


class SeenLoad(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """See `SeenLoadOut`."""

    waiting: int
    running: int
    kv_utilization: float
    age_seconds: float


class InFlight(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """See `InFlightOut`."""

    requests: int
    tokens: int


class Score(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """See `ScoreOut`."""

    name: str
    type: str
    raw: float | None
    score: float
    weight: float
    product: float
    age_seconds: float | None
    parts_ms: dict[str, float] | None = None


class Predicted(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """See `PredictedOut`."""

    ttft_ms: float
    tpot_ms: float | None
    ttft_headroom_ms: float
    tpot_headroom_ms: float


class Endpoint(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """See `ScoredEndpointOut`."""

    name: str
    address: str
    total: float
    filtered_by: str | None
    filter_reason: str | None
    filters_passed: Sequence[str]
    trust: str
    credit: float
    load: SeenLoad | None
    in_flight: InFlight
    prefix: Prefix | None
    predicted: Predicted | None
    scores: Sequence[Score]


def explained_endpoints(decision: Decision) -> list[Endpoint]:
    """Return all candidates with their reasons, in the fleet's order.

    Cost: about 3 us per candidate with four scorers.
    """
    candidates, dropped = decision.candidates, decision.dropped
    scores, totals = zip(*_scores(decision), strict=True), iter(decision.totals.tolist())
    all_scores: Iterator[Sequence[Score]] = scores if decision.scorers else repeat(())
    return [
        Endpoint(
            name, address, 0.0, drop.by, drop.reason, decision.filters_passed(drop), trust, credit, load, flying, prefix, times, ()
        )
        if (drop := dropped.get(name)) is not None
        else Endpoint(
            name, address, next(totals), None, None, decision.filters, trust, credit, load, flying, prefix, times,
            next(all_scores),
        )
        for name, address, trust, credit, load, flying, prefix, times in zip(
            candidates.names,
            candidates.addresses,
            _trusts(candidates),
            candidates.credit.tolist(),
            _loads(candidates, decision.at),
            map(InFlight, _integers(candidates.in_flight_requests), _integers(candidates.in_flight_tokens)),
            _prefixes(candidates.prefix) if candidates.prefix is not None else repeat(None),
            _predicted(candidates.predictions) if candidates.predictions is not None else repeat(None),
            strict=False,
        )
    ]  # fmt: skip


def _trusts(candidates: Candidates) -> list[str]:
    codes: list[int] = candidates.trust.tolist()
    return [TRUSTS[code].value for code in codes]


def _scores(decision: Decision) -> Iterator[Iterator[Score]]:
    """Yield the scores of each scorer."""
    kept = decision.kept
    for number, (name, kind, weight) in enumerate(decision.scorers):
        raws, scores, ages = decision.rated(number, kept)
        yield map(
            Score,
            repeat(name),
            repeat(kind),
            _finite(raws),
            scores.tolist(),
            repeat(weight),
            (weight * scores).tolist(),
            _finite(np.round(ages, AGE_DIGITS)),
            _parts(decision.inputs[number]),
        )


def _parts(inputs: Inputs | None) -> Iterator[dict[str, float] | None]:
    """Yield the parts of each input, None if they are not shown; one that is not finite is left out."""
    if inputs is None or inputs.parts is None:
        return repeat(None)
    names, values = inputs.parts
    rows: list[list[float]] = shown(values).T.tolist()
    return ({name: ms for name, ms in zip(names, row, strict=True) if isfinite(ms)} for row in rows)


def _loads(candidates: Candidates, now: float) -> Iterator[SeenLoad | None]:
    is_known = ~np.isnan(candidates.updated_at)
    seen = map(
        SeenLoad,
        _integers(candidates.waiting),
        _integers(candidates.running),
        candidates.kv_utilization.tolist(),
        np.round(np.maximum(0.0, now - candidates.updated_at), AGE_DIGITS).tolist(),
    )
    return (load if known else None for load, known in zip(seen, is_known.tolist(), strict=True))


def _predicted(predictions: Predictions) -> Iterator[Predicted | None]:
    """Yield what was expected of each candidate, None without a prediction."""
    columns = (
        predictions.ttft_ms,
        predictions.tpot_ms,
        predictions.ttft_headroom_ms,
        predictions.tpot_headroom_ms,
    )
    rows = zip(predictions.is_known.tolist(), *(each.tolist() for each in columns), strict=True)
    return (
        Predicted(ttft, tpot if tpot == tpot else None, *rooms) if is_known else None  # noqa: PLR0124 - not for NaN
        for is_known, ttft, tpot, *rooms in rows
    )


def _prefixes(prefixes: PrefixColumns) -> Iterator[Prefix | None]:
    """Yield the prefix of each candidate; those that hold nothing, which are most, share one."""
    n_tiers = len(prefixes.tiers)
    holds = np.bitwise_or.reduce(prefixes.figures[: 2 * n_tiers], axis=0) != 0
    held = _held(prefixes.take(np.flatnonzero(holds)))
    nothing = {
        rank: Prefix(rank, 0, 0, dict.fromkeys(prefixes.tiers, 0), [])
        for rank in set(prefixes.rank[~holds].tolist())
    }
    known = repeat(True) if prefixes.is_known is None else prefixes.is_known.tolist()
    for is_known, is_held, rank in zip(known, holds.tolist(), prefixes.rank.tolist(), strict=False):
        yield (next(held) if is_held else nothing[rank]) if is_known else None


def _held(prefixes: PrefixColumns) -> Iterator[Prefix]:
    tiers, sizes = prefixes.tiers, prefixes.block_size
    columns = zip(
        prefixes.rank.tolist(),
        prefixes.usable_tokens.tolist(),
        (prefixes.predicted_blocks * sizes).tolist(),
        (prefixes.tier_blocks * sizes).T.tolist(),
        prefixes.union_blocks.T.tolist(),
        strict=True,
    )
    for row, (rank, usable, predicted, tier_tokens, union) in enumerate(columns):
        in_turn: list[int] = union
        runs: Runs = prefixes.interleaved.get(row, ()) or tuple(enumerate(in_turn))
        yield Prefix(
            rank,
            usable,
            predicted,
            dict(zip(tiers, tier_tokens, strict=True)),
            [Run(tiers[tier], n_blocks) for tier, n_blocks in runs if n_blocks],
        )


def _integers(column: FloatArray) -> list[int]:
    numbers: list[int] = np.where(np.isnan(column), 0.0, column).astype(np.int64).tolist()
    return numbers


def _finite(column: FloatArray) -> list[float | None]:
    """Return numbers for JSON: null if one is not finite."""
    numbers: list[float | None] = column.tolist()
    is_finite = np.isfinite(column)
    if is_finite.all():
        return numbers
    return [number if known else None for number, known in zip(numbers, is_finite.tolist(), strict=True)]
