"""Guarded calls of plugins, which may be third-party code: any result keeps the request going, and faults are named."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from .base import Filter, MarksResponses, Picker, Rng, Scorer
from .candidates import Candidates
from .columns import FloatArray
from .decision import Decision, PluginFault
from .model import RequestView
from .ratings import Inputs, Verdicts

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
    name: str, plugin: Filter, request: RequestView, candidates: Candidates, rng: Rng
) -> tuple[Verdicts | None, PluginFault | None]:
    """Return the verdicts, None if every candidate is kept: a filter with an invalid result keeps all."""
    n = len(candidates)
    try:
        verdicts = plugin.judge(request, candidates, rng=rng)
        keep, reasons = verdicts.keep, verdicts.reasons
        if len(keep) != n:
            return None, PluginFault(name, "wrong_length", f"judged {len(keep)} endpoints, want {n}")
        if keep.dtype != np.bool_ or keep.ndim != 1 or not callable(reasons):
            return None, PluginFault(name, "wrong_answer", "verdicts are no mask with reasons")
    except Exception as error:  # noqa: BLE001 - see `call_plugin`; written out, since this is the hot path
        return None, PluginFault(name, "raised", _description(error))
    return None if keep.all() else verdicts, None


def checked_ratings(
    name: str, scorer: Scorer, request: RequestView, candidates: Candidates, scores: FloatArray
) -> tuple[Inputs | None, PluginFault | None]:
    """Write the scores into `scores`, all 0 if they are invalid, and return their inputs.

    `repaired` must follow: scores may still be outside [0, 1].
    """
    n = len(candidates)
    try:
        ratings = scorer.rate(request, candidates)
        given, inputs = ratings.scores, ratings.inputs
        if len(given) == n and (inputs is None or callable(inputs.raw) or len(inputs.raw) == n):
            scores[:] = given
            return inputs, None
        detail = f"rated {len(given)} endpoints, want {n}"
        fault = PluginFault(name, "wrong_length", detail)
    except Exception as error:  # noqa: BLE001 - see `call_plugin`; written out, since this is the hot path
        fault = PluginFault(name, "raised", _description(error))
    scores[:] = 0.0
    return None, fault


def are_valid(scores: FloatArray) -> bool:
    """Return whether all are in [0, 1]; NaN is not. At least one."""
    return bool(np.minimum.reduce(scores, axis=None) >= 0.0 and np.maximum.reduce(scores, axis=None) <= 1.0)


def repaired(name: str, scores: FloatArray) -> PluginFault | None:
    """Bring one scorer's scores into [0, 1], in place; return the fault if any was outside."""
    if are_valid(scores):
        return None
    n, n_not_finite = len(scores), int(np.count_nonzero(~np.isfinite(scores)))
    n_outside = int(np.count_nonzero(~((scores >= 0.0) & (scores <= 1.0))))
    scores[:] = np.clip(np.where(np.isfinite(scores), scores, 0.0), 0.0, 1.0)
    if n_not_finite:
        return PluginFault(name, "not_finite", f"{n_not_finite} of {n} scores are not finite, taken as 0")
    return PluginFault(name, "out_of_range", f"{n_outside} of {n} scores outside [0, 1], clamped")


def checked_pick(
    picker: Picker, totals: FloatArray, rng: Rng, fallback: Picker
) -> tuple[Sequence[int], bool, PluginFault | None]:
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


def _is_header_text(answer: object) -> bool:
    return isinstance(answer, str) and answer.isascii() and answer.isprintable()


def _is_row(answer: object, n_rows: int) -> bool:
    return isinstance(answer, int) and 0 <= answer < n_rows


def _description(error: Exception) -> str:
    """Return type, message and source line of the exception, as one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())[:MAX_DETAIL_CHARS]
    file_name = where.filename.rpartition("/")[2]
    return f"{type(error).__name__}: {message} ({file_name}:{where.lineno})"
