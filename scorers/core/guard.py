"""Guarded calls of plugins, which may be third-party code: any result keeps the request going, and faults are named."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from .base import Filter, MarksResponses, Picker, Rng, Scorer, Verdicts
from .decision import Decision, PluginFault
from .model import UNRATED, Candidate, Rating, Ratings, RequestView
from .rating_column import RatingColumn

T = TypeVar("T")

MAX_DETAIL_CHARS = 300
"""Longest message of an exception in a fault, which is shown in one log line or table cell."""


def call_plugin(name: str, call: Callable[[], T]) -> T | PluginFault:
    """Return the call's result, or a fault with the exception that it raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - any exception of a plugin must cost only its own result
        return PluginFault(name, "raised", _description(error))


def checked_verdicts(
    name: str, plugin: Filter, request: RequestView, candidates: Sequence[Candidate], rng: Rng
) -> tuple[Verdicts, PluginFault | None]:
    """Return one verdict per candidate; a filter with an invalid result keeps every candidate."""
    fault: PluginFault
    match call_plugin(name, lambda: list(plugin.judge(request, candidates, rng=rng))):
        case PluginFault() as fault:
            pass
        case verdicts if len(verdicts) != len(candidates):
            fault = PluginFault(
                name, "wrong_length", f"judged {len(verdicts)} endpoints, want {len(candidates)}"
            )
        case verdicts if not all(_is_verdict(verdict) for verdict in verdicts):
            fault = PluginFault(name, "wrong_answer", "a verdict is neither None nor a text")
        case verdicts:
            return verdicts, None
    return [None] * len(candidates), fault


def checked_ratings(
    name: str, scorer: Scorer, request: RequestView, candidates: Sequence[Candidate]
) -> tuple[Ratings, Sequence[float], PluginFault | None]:
    """Return ratings with every score in [0, 1], their scores, and the fault if any was invalid."""
    try:
        ratings, scores = _listed(scorer.rate(request, candidates))
        outside = [score for score in scores if not 0.0 <= score <= 1.0]
        if not outside and len(ratings) == len(candidates):
            return ratings, scores, None
        n_not_finite = sum(not math.isfinite(score) for score in outside)
    except Exception as error:  # noqa: BLE001 - see `call_plugin`; written out, since this is the hot path
        return *_unknown(candidates), PluginFault(name, "raised", _description(error))
    if len(ratings) != len(candidates):
        detail = f"rated {len(ratings)} endpoints, want {len(candidates)}"
        return *_unknown(candidates), PluginFault(name, "wrong_length", detail)
    if n_not_finite:
        reason, detail = "not_finite", f"{n_not_finite} of {len(ratings)} scores are not finite, taken as 0"
    else:
        reason, detail = "out_of_range", f"{len(outside)} of {len(ratings)} scores outside [0, 1], clamped"
    return *_listed([_clamped(rating) for rating in ratings]), PluginFault(name, reason, detail)


def checked_pick(
    picker: Picker, totals: Sequence[float], rng: Rng, fallback: Picker
) -> tuple[list[int], bool, PluginFault | None]:
    """Return distinct indices into `totals`, best first; `fallback` picks if the result of `picker` is invalid."""
    try:
        picked, by_chance = picker.pick(totals, rng=rng)
        if picked and len(set(picked)) == len(picked) and all(_is_row(row, len(totals)) for row in picked):
            return picked, by_chance, None
        detail = f"picked {len(picked)} of {len(totals)} endpoints"
        fault = PluginFault(picker.type, "wrong_answer", detail)
    except Exception as error:  # noqa: BLE001 - see `call_plugin`; written out, since this is the hot path
        fault = PluginFault(picker.type, "raised", _description(error))
    return *fallback.pick(totals, rng=rng), fault


def checked_headers(
    name: str, plugin: MarksResponses, decision: Decision
) -> tuple[dict[str, str], PluginFault | None]:
    """Return headers that are valid in HTTP; a plugin with any invalid header sets none."""
    headers = call_plugin(name, lambda: dict(plugin.response_headers(decision)))
    if isinstance(headers, PluginFault):
        return {}, headers
    if not all(_is_header_text(text) for entry in headers.items() for text in entry):
        return {}, PluginFault(name, "wrong_answer", "a response header is not printable ASCII")
    return headers, None


def _listed(ratings: Ratings) -> tuple[Ratings, Sequence[float]]:
    """Return the ratings, copied if the plugin could change them, and their scores."""
    if isinstance(ratings, RatingColumn):
        return ratings, ratings.scores
    own = list(ratings)
    return own, [rating.score for rating in own]


def _unknown(candidates: Sequence[Candidate]) -> tuple[Ratings, Sequence[float]]:
    return _listed([UNRATED] * len(candidates))


def _is_verdict(answer: object) -> bool:
    return answer is None or isinstance(answer, str)


def _is_header_text(answer: object) -> bool:
    return isinstance(answer, str) and answer.isascii() and answer.isprintable()


def _is_row(answer: object, n_rows: int) -> bool:
    return isinstance(answer, int) and 0 <= answer < n_rows


def _clamped(rating: Rating) -> Rating:
    score = min(1.0, max(0.0, rating.score)) if math.isfinite(rating.score) else 0.0
    return Rating(raw=rating.raw, score=score, age_s=rating.age_s)


def _description(error: Exception) -> str:
    """Return type, message and source line of the exception, as one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())[:MAX_DETAIL_CHARS]
    file_name = where.filename.rpartition("/")[2]
    return f"{type(error).__name__}: {message} ({file_name}:{where.lineno})"
