"""Plans with `joint-cost-handler`, and requests that they route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from kvatlas.routing.plan.plan import Plan, make_plan
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.placement_option import PlacementOption
from kvatlas.scorers.core.scheduler import Scheduler
from kvatlas.scorers.handlers.joint_cost import JointCostHandler
from kvatlas.scorers.latency.joint import JointModel
from support.plans import config
from support.rating import decide
from support.stages import FILTERS

HANDLER = "joint-cost-handler"


def joint(
    *more: str | dict[str, Any], names: Sequence[str] = ("decode", "prefill"), **parameters: Any
) -> Plan:
    """Return a plan with the handler and profiles of the filters of roles."""
    sections = [{"name": name, "plugins": [{"pluginRef": f"{name}-filter"}]} for name in names]
    plugin = {"type": HANDLER, "parameters": parameters}
    return make_plan(config(*FILTERS, *more, plugin, schedulingProfiles=sections))


def scheduler(*more: str | dict[str, Any], **parameters: Any) -> Scheduler:
    """Return what decides in such a plan."""
    made = joint(*more, **parameters).profile
    assert isinstance(made, Scheduler)
    return made


def pair_of(decision: Decision) -> tuple[str | None, str]:
    """Return the servers that prefill and decode, None for the decode server itself."""
    prefill = next((each.decision.picked[0] for each in decision.stages if each.name == "prefill"), None)
    return prefill, decision.picked[0]


def options_of(decision: Decision) -> tuple[PlacementOption, ...]:
    """Return the placements that were compared."""
    assert decision.placement is not None
    return decision.placement.options


def send(scheduler: Scheduler, fleet: Sequence[Candidate], *, n_tokens: int, now: float = 0.0) -> Decision:
    """Route a request, as the dispatcher does."""
    request = RequestView(model="m", now=now, n_tokens=n_tokens)
    decision = replace(decide(scheduler, request, fleet).lasting(), at=now)
    assert scheduler.picked(request, decision) == ()
    return decision


def answer(scheduler: Scheduler, decision: Decision, *, ms: float, tpot_ms: float | None = None) -> None:
    """End a request whose first token came after so many milliseconds."""
    assert scheduler.answered(decision, ttft_s=ms / 1000.0) == ()
    tpot_s = tpot_ms / 1000.0 if tpot_ms is not None else None
    assert scheduler.ended(decision, tpot_s=tpot_s) == ()


def model_of(scheduler: Scheduler) -> JointModel:
    """Return the model of its handler."""
    assert isinstance(scheduler.handler, JointCostHandler)
    return scheduler.handler.model
