"""Callbacks of plugins after a decision: the route, the first token, the end, and the headers of the response."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec

from .base import (
    LearnsFromAnswers,
    LearnsFromEnds,
    LearnsFromLengths,
    LearnsFromPicks,
    LearnsFromRefusals,
    MarksResponses,
)
from .decision import Decision
from .faults import PluginFault
from .guard import call_plugin, checked_headers
from .model import RequestView

P = ParamSpec("P")


class Learners:
    """The plugins among some that have callbacks.

    Args:
        plugins: (name, plugin), called in this order.
    """

    def __init__(self, plugins: Sequence[tuple[str, object]]) -> None:
        self._picks = [(name, each.picked) for name, each in plugins if isinstance(each, LearnsFromPicks)]
        self._answers = [
            (name, each.answered) for name, each in plugins if isinstance(each, LearnsFromAnswers)
        ]
        self._ends = [(name, each.ended) for name, each in plugins if isinstance(each, LearnsFromEnds)]
        self._lengths = [
            (name, each.generated) for name, each in plugins if isinstance(each, LearnsFromLengths)
        ]
        self._refusals = [
            (name, each.refused) for name, each in plugins if isinstance(each, LearnsFromRefusals)
        ]
        self._mark = [(name, each) for name, each in plugins if isinstance(each, MarksResponses)]

    def picked(self, request: RequestView, decision: Decision) -> tuple[PluginFault, ...]:
        """Call the plugins after the request was routed; return the faults of those that raised."""
        return _faults_of(self._picks, request, decision)

    def answered(self, decision: Decision, *, ttft_s: float) -> tuple[PluginFault, ...]:
        """Call the plugins with the time to first token; return the faults of those that raised."""
        return _faults_of(self._answers, decision, ttft_s=ttft_s)

    def ended(
        self,
        decision: Decision,
        *,
        tpot_s: float | None,
        n_output: int | None = None,
        is_refused: bool = False,
    ) -> tuple[PluginFault, ...]:
        """Call the plugins after a routed request ended; return the faults of those that raised.

        Args:
            decision: that routed it.
            tpot_s: see `LearnsFromEnds`.
            n_output: generated tokens as the picked endpoint counted them, None if that is not known.
            is_refused: see `LearnsFromRefusals`.
        """
        refusals = _faults_of(self._refusals, decision) if is_refused else ()
        faults = _faults_of(self._lengths, decision, n_tokens=n_output) if n_output is not None else ()
        return refusals + faults + _faults_of(self._ends, decision, tpot_s=tpot_s)

    def response_headers(self, decision: Decision) -> tuple[dict[str, str], tuple[PluginFault, ...]]:
        """Return the headers to set on the response to a routed request, and the faults of plugins."""
        if not self._mark:
            return {}, ()
        headers: dict[str, str] = {}
        faults: list[PluginFault] = []
        for name, each in self._mark:
            marked, fault = checked_headers(name, each, decision)
            headers |= marked
            if fault is not None:
                faults.append(fault)
        return headers, tuple(faults)


def _faults_of(
    callbacks: Iterable[tuple[str, Callable[P, None]]], *arguments: P.args, **options: P.kwargs
) -> tuple[PluginFault, ...]:
    faults: tuple[PluginFault, ...] = ()
    for name, callback in callbacks:
        fault = call_plugin(name, callback, *arguments, **options)
        if fault is not None:
            faults = (*faults, fault)
    return faults
