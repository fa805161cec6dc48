"""Configurations made of plugins, and the decisions of their plans."""

from __future__ import annotations

from typing import Any

import msgspec

from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.routing.plan.plan import Plan, make_plan
from kvatlas.scorers.core.model import Candidate, RequestView
from support.candidates import endpoint, held, match_of, no_chance
from support.rating import decide

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
FLEET = [endpoint("a", prefix=match_of(0b111, 0b11111111, n_blocks=10)), endpoint("b", prefix=held(cpu=10))]


def config(*plugins: str | dict[str, Any], **more: Any) -> KVAtlasConfig:
    """Return a configuration with plugins, by type or written out, and further sections."""
    data: dict[str, Any] = {
        "kind": "KVAtlasConfig",
        "apiVersion": "kvatlas/v1",
        "plugins": [{"type": each} if isinstance(each, str) else each for each in plugins],
    }
    return msgspec.convert(data | more, KVAtlasConfig)


def profile(*references: str | tuple[str, float]) -> dict[str, Any]:
    """Return the section of one profile with these plugins, each with its weight if one is given."""
    entries = [
        {"pluginRef": each} if isinstance(each, str) else {"pluginRef": each[0], "weight": each[1]}
        for each in references
    ]
    return {"schedulingProfiles": [{"plugins": entries}]}


def approx(name: str, **parameters: Any) -> dict[str, Any]:
    """Return a plugin that is an approximate prefix cache producer."""
    return {"type": "approx-prefix-cache-producer", "name": name, "parameters": parameters}


def scores(plan: Plan, *fleet: Candidate) -> list[list[tuple[str, float, float]]]:
    """Return (name, weight, score) of every term, for each candidate."""
    decision = decide(plan.profile, REQUEST, fleet or FLEET, rng=no_chance)
    return [
        [(term.name, term.weight, round(term.rating.score, 6)) for term in each.terms]
        for each in decision.scored
    ]


def planned(*plugins: str | dict[str, Any], **more: Any) -> Plan:
    """Return the plan of that configuration."""
    return make_plan(config(*plugins, **more))
