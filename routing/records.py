"""Records of routing: counters, kept decisions, and observers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

from ..fleet.audit import Audited
from ..indexer.prefix import Prefix
from ..scorers.core.base import Rng
from ..scorers.core.decision import Decision
from ..scorers.core.faults import PluginFault
from ..scorers.core.model import RequestView
from ..scorers.core.scheduler import Deciding
from ..scorers.core.shadow import Draws, Repeat
from .decider import usable_tokens
from .decision_log import DecisionLog
from .metrics import RoutingMetrics
from .observers.observers import Observers
from .outcome import Completion
from .router import Arrival, Refusal, Route, RoutingResult

log = logging.getLogger(__name__)


class Records:
    """Writes down what happens to requests. Nothing here changes a decision.

    Args:
        metrics: counters.
        decisions: keeps decisions on requests.
        observers: further observers; None if there are none.
    """

    def __init__(
        self, metrics: RoutingMetrics, decisions: DecisionLog, observers: Observers | None = None
    ) -> None:
        self.metrics, self.decisions = metrics, decisions
        self._observers = observers
        self._logged_faults: set[tuple[str, str]] = set()

    @property
    def max_load_age_s(self) -> float:
        """Return the age up to which the load of endpoints with known requests will do."""
        return self._observers.max_load_age_s if self._observers is not None else math.inf

    def draws(self, rng: Rng) -> Draws | None:
        """Return draws for a decision that an observer repeats; None if `rng` itself will do."""
        return self._observers.draws(rng) if self._observers is not None else None

    def decided(self, decision: Decision, request_id: str) -> None:
        """Keep a decision on a request."""
        self.decisions.add(decision, request_id=request_id, at=time.time())
        if decision.denied is not None:
            self.metrics.denied(decision.denied.by)
        elif decision.placement is not None and decision.placement.lacking is not None:
            self.metrics.missing(decision.placement.lacking)

    def routed(
        self, view: RequestView, decision: Decision, prefix: Prefix | None, repeat: Repeat | None
    ) -> tuple[Arrival | None, Deciding | None]:
        """Pass a routed request on to the observers; returns what its route keeps for them, see `Route`."""
        if self._observers is None:
            return None, None
        return self._observers.routed(view, decision, prefix, repeat)

    def counted(self, result: RoutingResult, started: float) -> RoutingResult:
        """Count a result and the time since `started`, and return the result."""
        if isinstance(result, Route):
            self._count_route(result.decision)
        elif isinstance(result, Refusal):
            self.metrics.refused(result.code.value)
        self.metrics.decision_seconds.observe(time.perf_counter() - started)
        return result

    def first_token(self, route: Route, *, ttft_s: float) -> None:
        """Pass the time of a first token on to the observers."""
        if self._observers is not None:
            self._observers.first_token(route, ttft_s=ttft_s)

    def ended(self, completion: Completion) -> None:
        """Pass the end of a request on to the observers."""
        if self._observers is not None:
            self._observers.ended(completion)

    def audited(self, decision: Decision, found: Audited) -> None:
        """Keep the engine's own count beside the decision."""
        self.decisions.audited(decision, found)

    def count_faults(self, faults: Iterable[PluginFault]) -> None:
        """Count faults of plugins; each kind is logged once."""
        for fault in faults:
            self.metrics.plugin_fault(fault.name, fault.reason)
            if (fault.name, fault.reason) not in self._logged_faults:
                self._logged_faults.add((fault.name, fault.reason))
                # Without the fault's text: another package wrote it, and it may quote the request.
                log.warning(
                    "plugin %s: its result had to be repaired (%s); POST /v1/score shows the details, "
                    "further faults are counted in kvatlas_plugin_faults_total",
                    fault.name, fault.reason,
                )  # fmt: skip

    def _count_route(self, decision: Decision) -> None:
        self.metrics.picked(decision.picked[0])
        self.count_faults(decision.faults)
        if decision.placement is not None:
            self.metrics.placed(decision.placement)
            for stage in decision.stages:
                self.count_faults(stage.decision.faults)
        if decision.no_prefix_reason is not None:
            self.metrics.no_prefix(decision.no_prefix_reason)
        if decision.cut_reason is not None:
            self.metrics.prefix_cut(decision.cut_reason)
        if decision.is_estimated:
            self.metrics.prompt_estimated(tokens=decision.n_tokens)
            return
        self.metrics.prompt_known(tokens=decision.n_tokens, usable=usable_tokens(decision.computing))
