"""`context-length-aware`: prefers endpoints whose label covers the length of the prompt."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from msgspec import Meta

from .core.base import Rng
from .core.candidates import Candidates
from .core.model import RequestView
from .core.params import PluginParams
from .core.ratings import Inputs, Ratings, Verdicts, keep_all
from .core.registry import Registry

PLUGIN_TYPE = "context-length-aware"

IN_RANGE_FROM = 0.3
"""Scores in range are above this, all others at most this. Source: the reference."""

MAX_DIGITS = 12
"""Most digits of a number in a label; no prompt has more tokens."""


class ContextLengthParams(PluginParams, frozen=True):
    """Parameters of `context-length-aware`."""

    label: Annotated[str, Meta(min_length=1)] = "llm-d.ai/context-length-range"
    """Label whose value `MIN-MAX` is the range of prompt lengths, in tokens, for the endpoint."""
    enable_filtering: bool = False
    """Whether endpoints for other lengths are also dropped."""


class LengthRange(NamedTuple):
    """Prompt lengths in tokens, both ends included."""

    low: int
    high: int

    def distance(self, n_tokens: int) -> int:
        """Return the tokens between a length and the range, 0 within it."""
        return max(n_tokens - self.high, self.low - n_tokens, 0)


class ContextLengthScorer:
    """Score by the range `low`-`high` in the label, with `width = high - low` and a prompt of n tokens.

    In range: `0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * (high - n) / width)`, or 1 if the width is 0.
    Outside: `0.3 / (1 + distance / 1000)`. No label: 0.5. An unreadable label: 0.
    Ties: endpoints with the same label score the same.
    """

    type = PLUGIN_TYPE

    def __init__(self, label: str) -> None:
        self._label = label

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the distance in tokens to its range, None if there is no readable label."""
        labels = candidates.labelled(self._label)
        scores = labels.mapped(lambda label: _score(request.n_tokens, label))
        return Ratings(scores, Inputs(labels.mapped(lambda label: _distance(request.n_tokens, label))))


def _score(n_tokens: int, label: str | None) -> float:
    if label is None:
        return 0.5
    span = parse_range(label)
    if span is None:
        return 0.0
    distance = span.distance(n_tokens)
    if distance:
        return IN_RANGE_FROM / (1 + distance / 1000)
    width = span.high - span.low
    if not width:
        return 1.0
    fit = 0.7 / (1 + width / 10_000) + 0.3 * (span.high - n_tokens) / width
    return IN_RANGE_FROM + (1 - IN_RANGE_FROM) * fit


def _distance(n_tokens: int, label: str | None) -> float:
    span = parse_range(label) if label is not None else None
    return span.distance(n_tokens) if span is not None else math.nan


class ContextLengthFilter:
    """Filter that drops endpoints whose label is unreadable or excludes the prompt's length; it keeps those without label.

    Args:
        label: name of the label.
        enabled: False keeps everything.
    """

    type = PLUGIN_TYPE

    def __init__(self, label: str, *, enabled: bool) -> None:
        self._label, self._enabled = label, enabled

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        if not self._enabled:
            return keep_all(candidates)
        n_tokens, key = request.n_tokens, self._label
        return Verdicts(
            candidates.labelled(key).where(lambda label: self._verdict(n_tokens, label) is None),
            lambda dropped: [self._verdict(n_tokens, labels.get(key)) or "" for labels in dropped.labels],
        )

    def _verdict(self, n_tokens: int, label: str | None) -> str | None:
        if label is None:
            return None
        span = parse_range(label)
        if span is None:
            return f"label {self._label} is {label!r}, want MIN-MAX"
        if span.low <= n_tokens <= span.high:
            return None
        return f"the prompt has {n_tokens} tokens, label {self._label} is {label}"


def parse_range(label: str) -> LengthRange | None:
    """Return the range that a label gives as `MIN-MAX`, None if it has another form."""
    parts = [part.strip() for part in label.split("-")]
    if len(parts) != 2 or not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        return None
    low, high = int(parts[0]), int(parts[1])
    return LengthRange(low, high) if low <= high else None


def register(registry: Registry) -> None:
    """Register `context-length-aware` as scorer and as filter."""
    registry.scorers.add(
        PLUGIN_TYPE, ContextLengthParams, lambda params, _: ContextLengthScorer(params.label)
    )
    registry.filters.add(
        PLUGIN_TYPE,
        ContextLengthParams,
        lambda params, _: ContextLengthFilter(params.label, enabled=params.enable_filtering),
    )
