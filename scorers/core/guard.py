"""Guarded calls of plugins, which may be third-party code: any result keeps the request going, and faults are named."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, cast

import numpy as np

from .base import Admitter, Filter, MarksResponses, Picker, PicksNear, Predictor, Rng, Scorer
from .candidates import Candidates
from .columns import FloatArray, are_valid
from .decision import Decision
from .faults import PluginFault
from .model import RequestView
from .predictions import N_FIGURES, Predictions
from .ratings import Inputs, Verdicts

T = TypeVar("T")
P = ParamSpec("P")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A `token` of RFC 9110."""

MAX_DETAIL_CHARS = 300
"""Longest message of an exception in a fault, which is shown in one log line or table cell."""


def call_plugin(name: str, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | PluginFault:
    """Return the call's result, or a fault with the exception that it raised."""
    try:
        return call(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - any exception of a plugin must cost only its own result
        return PluginFault(name, "raised", _description(error))


def checked_admission(
    name: str, plugin: Admitter, request: RequestView, candidates: Candidates, rng: Rng
) -> tuple[str | None, PluginFault | None]:
    """Return why the request is refused, None if it is admitted: an admitter with an invalid result admits."""
    answer = cast("object", call_plugin(name, plugin.admit, request, candidates, rng=rng))
    if isinstance(answer, PluginFault):
        return None, answer
    if answer is None or isinstance(answer, str):
        return answer, None
    return None, PluginFault(name, "wrong_answer", "the reason is no text")


def checked_predictions(
    name: str, plugin: Predictor, request: RequestView, candidates: Candidates
) -> tuple[Predictions | None, PluginFault | None]:
    """Return the predictions; a predictor with an invalid result predicts nothing."""
    answer = cast("object", call_plugin(name, plugin.predict, request, candidates))
    if isinstance(answer, PluginFault):
        return None, answer
    if answer is None:
        return None, None
    if not isinstance(answer, Predictions):
        return None, PluginFault(name, "wrong_answer", "the answer is no predictions")
    if answer.figures.shape != (N_FIGURES, len(candidates)):
        return None, PluginFault(name, "wrong_length", f"predicted {answer.figures.shape}")
    return answer, None


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
    name: str, scorer: Scorer, request: RequestView, candidates: Candidates, n: int
) -> tuple[FloatArray, Inputs | None, float, PluginFault | None]:
    """Return scores of `n` candidates, their inputs and resolution; a scorer without a valid result gives all 0.

    Scores may still be outside [0, 1], or no numbers: `weigh` finds that, and `repaired` mends it.
    """
    try:
        ratings = scorer.rate(request, candidates)
        scores, inputs, resolution = ratings.scores, ratings.inputs, ratings.resolution
        if len(scores) == n and (inputs is None or callable(inputs.raw) or len(inputs.raw) == n):
            return scores, inputs, resolution if 0.0 < resolution <= 1.0 else 0.0, None
        fault = PluginFault(name, "wrong_length", f"rated {len(scores)} endpoints, want {n}")
    except Exception as error:  # noqa: BLE001 - see `call_plugin`; written out, since this is the hot path
        fault = PluginFault(name, "raised", _description(error))
    return np.zeros(n), None, 0.0, fault


def repaired(name: str, given: FloatArray, n: int) -> tuple[FloatArray, PluginFault | None]:
    """Return one scorer's `n` scores as numbers in [0, 1], and the fault if they were not."""
    scores = np.zeros(n)
    try:
        scores[:] = given
    except Exception as error:  # noqa: BLE001 - see `call_plugin`; the result may be of any type
        return np.zeros(n), PluginFault(name, "raised", _description(error))
    if are_valid(scores):
        return scores, None
    n_not_finite = int(np.count_nonzero(~np.isfinite(scores)))
    n_outside = int(np.count_nonzero(~((scores >= 0.0) & (scores <= 1.0))))
    scores = np.clip(np.where(np.isfinite(scores), scores, 0.0), 0.0, 1.0)
    if n_not_finite:
        return scores, PluginFault(
            name, "not_finite", f"{n_not_finite} of {n} scores are not finite, taken as 0"
        )
    return scores, PluginFault(name, "out_of_range", f"{n_outside} of {n} scores outside [0, 1], clamped")


def checked_pick(
    picker: Picker, totals: FloatArray, resolution: float, rng: Rng, fallback: Picker
) -> tuple[Sequence[int], bool, PluginFault | None]:
    """Return distinct indices into `totals`, best first; `fallback` picks if the result of `picker` is invalid.

    A resolution above 0 is only given to a picker that implements `PicksNear`.
    """
    n = len(totals)
    try:
        if resolution > 0.0:
            picked, by_chance = cast("PicksNear", picker).pick_near(totals, resolution, rng=rng)
        else:
            picked, by_chance = picker.pick(totals, rng=rng)
        is_valid = bool(picked) and len(set(picked)) == len(picked)
        for row in picked:
            is_valid = is_valid and _is_row(row, n)
        if is_valid:
            return picked, by_chance, None
        fault = PluginFault(picker.type, "wrong_answer", f"picked {len(picked)} of {n} endpoints")
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
    for header, value in headers.items():
        if fault := _header_fault(header, value):
            return {}, PluginFault(name, "wrong_answer", fault)
    return headers, None


def _header_fault(header: object, value: object) -> str:
    """Return why the header is not valid in HTTP; empty if it is."""
    if not (isinstance(header, str) and _HEADER_NAME.fullmatch(header)):
        return f"a response header has the name {header!r:.{MAX_DETAIL_CHARS}}, which is none of HTTP"
    if not (isinstance(value, str) and value.isascii() and value.isprintable()):
        return f"the value of response header {header:.{MAX_DETAIL_CHARS}} is not printable ASCII"
    return ""


def _is_row(answer: object, n_rows: int) -> bool:
    return isinstance(answer, int) and 0 <= answer < n_rows


def _description(error: Exception) -> str:
    """Return type, message and source line of the exception, as one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    try:
        message = " ".join(str(error).split())[:MAX_DETAIL_CHARS]
    except Exception:  # noqa: BLE001 - the exception may be a plugin's own
        message = "without a readable message"
    file_name = where.filename.rpartition("/")[2]
    return f"{type(error).__name__}: {message} ({file_name}:{where.lineno})"
