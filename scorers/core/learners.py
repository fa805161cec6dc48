"""Callbacks of plugins after a decision: the route, the first token, the end, and the headers of the response."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from .base import LearnsFromAnswers, LearnsFromEnds, LearnsFromLengths, LearnsFromPicks, MarksResponses
from .decision import Decision
from .faults import PluginFault
from .guard import call_plugin, checked_headers
from .model import RequestView


class Learners:
    """The plugins among some that have callbacks.

    Args:
        plugins: (name, plugin), called in this order.
    """

    def __init__(self, plugins: Sequence[tuple[str, object]]) -> None:
        self._picks = [(name, each) for name, each in plugins if isinstance(each, LearnsFromPicks)]
        self._answers = [(name, each) for name, each in plugins if isinstance(each, LearnsFromAnswers)]
        self._ends = [(name, each) for name, each in plugins if isinstance(each, LearnsFromEnds)]
        self._lengths = [(name, each) for name, each in plugins if isinstance(each, LearnsFromLengths)]
        self._mark = [(name, each) for name, each in plugins if isinstance(each, MarksResponses)]

    def picked(self, request: RequestView, decision: Decision) -> tuple[PluginFault, ...]:
        """Call the plugins after the request was routed; return the faults of those that raised."""
        if not self._picks:
            return ()
        return _faults_of((name, partial(each.picked, request, decision)) for name, each in self._picks)

    def answered(self, decision: Decision, *, ttft_s: float) -> tuple[PluginFault, ...]:
        """Call the plugins with the time to first token; return the faults of those that raised."""
        if not self._answers:
            return ()
        calls = ((name, partial(each.answered, decision, ttft_s=ttft_s)) for name, each in self._answers)
        return _faults_of(calls)

    def ended(
        self, decision: Decision, *, tpot_s: float | None, n_output: int | None = None
    ) -> tuple[PluginFault, ...]:
        """Call the plugins after a routed request ended; return the faults of those that raised.

        Args:
            decision: that routed it.
            tpot_s: see `LearnsFromEnds`.
            n_output: generated tokens as the picked endpoint counted them, None if that is not known.
        """
        if not self._ends and not self._lengths:
            return ()
        calls = [(name, partial(each.ended, decision, tpot_s=tpot_s)) for name, each in self._ends]
        if n_output is not None:
            calls = [
                *(
                    (name, partial(each.generated, decision, n_tokens=n_output))
                    for name, each in self._lengths
                ),
                *calls,
            ]
        return _faults_of(calls)

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


def _faults_of(calls: Iterable[tuple[str, Callable[[], None]]]) -> tuple[PluginFault, ...]:
    return tuple(fault for name, call in calls if (fault := call_plugin(name, call)) is not None)
