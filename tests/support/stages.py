"""Plans with stages on different servers, and fleets for them."""

from __future__ import annotations

from typing import Any

from kvatlas.routing.plan.plan import Plan, make_plan
from kvatlas.scorers.core.model import Candidate
from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.candidates import endpoint, held, load
from support.plans import config

ALWAYS, MEDIA, BY_PREFIX = (
    "always-disagg-pd-decider",
    "always-disagg-multimodal-decider",
    "prefix-based-pd-decider",
)
FILTERS = ("decode-filter", "prefill-filter", "encode-filter")
STAGES = ("decode", "prefill", "encode")


def staged(
    *more: str | dict[str, Any],
    handler: str = "disagg-profile-handler",
    names: tuple[str, ...] = STAGES,
    **parameters: Any,
) -> Plan:
    """Return a plan with a handler and profiles of these names.

    Each profile has `queue-scorer`, and the filter of the role if it has the name of a stage.
    """
    sections = [
        {
            "name": name,
            "plugins": [
                *({"pluginRef": each} for each in FILTERS if each == f"{name}-filter"),
                {"pluginRef": "queue-scorer"},
            ],
        }
        for name in names
    ]
    plugin = {"type": handler, "parameters": parameters}
    return make_plan(config("queue-scorer", *FILTERS, *more, plugin, schedulingProfiles=sections))


def server(name: str, role: str | None, *, waiting: int = 0, cached: int = 0, **labels: str) -> Candidate:
    """Return a server with a role that holds so many of ten blocks of the prompt."""
    given = labels if role is None else {ROLE_LABEL: role, **labels}
    return endpoint(name, of=load(waiting=waiting), prefix=held(gpu=cached), labels=given)


FLEET = (
    server("d0", "decode", waiting=1),
    server("d1", "decode"),
    server("p0", "prefill"),
    server("p1", "prefill", waiting=1),
    server("e0", "encode"),
)
"""Of which d1, p0 and e0 have the shortest queues of their stages."""
