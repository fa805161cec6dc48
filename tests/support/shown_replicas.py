"""Answers of `/v1/replicas`, as replica `kvatlas-1` gives them."""

from __future__ import annotations

from typing import Any

from kvatlas.api.rest.replica_models import ReplicaOut, ReplicasOut

UNHEARD: dict[str, Any] = {"generation": None, "configuration": None}


def other(name: str, state: Any = "live", **more: Any) -> ReplicaOut:
    """Return another replica, by default one with which all is well."""
    facts: dict[str, Any] = {"version": "0.1.0", "age_seconds": 0.12, "generation": 3, "configuration": "aa"}
    counts: dict[str, Any] = {
        "missing_messages": 0,
        "received_messages": 9,
        "received_bytes": 20_480,
        "problem": None,
    }
    own: dict[str, Any] = {"name": name, "id": f"{name}/1", "state": state}
    return ReplicaOut(**(own | facts | counts | more))


def replicas_answer(*others: ReplicaOut, problem: str | None = None) -> ReplicasOut:
    """Return the answer of a replica with these others."""
    own: dict[str, Any] = {"name": "kvatlas-1", "id": "kvatlas-1/1", "generation": 3, "configuration": "aa"}
    own |= {"heard_picks": 0, "concurrent_picks": 0}
    return ReplicasOut(transport="mesh", problem=problem, replicas=list(others), **own)


FIVE = replicas_answer(
    other("kvatlas-0"),
    other("kvatlas-2", "behind", missing_messages=4, configuration="bb", generation=2),
    other("kvatlas-3", "silent", age_seconds=75.2, **UNHEARD),
    other(
        "",
        "refused",
        version="",
        **UNHEARD,
        problem="a replica speaks version 2 of the protocol, this one version 1",
    ),
)
