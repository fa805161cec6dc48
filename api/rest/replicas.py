"""`/v1/replicas`: the other processes that decide for the same endpoints."""

from __future__ import annotations

from fastapi import APIRouter

from ...fleet.replicas.sibling import Sibling, SiblingState
from ...fleet.replicas.view import ReplicasView
from ...fleet.replicas.word import Word
from ...routing.plan.live import LiveConfig
from ...routing.plan.rest_changes import digest
from .replica_models import ReplicaOut, ReplicasOut


def replica_routes(view: ReplicasView | None, live: LiveConfig) -> APIRouter:
    """Return the route of `/v1/replicas`.

    Args:
        view: of the replicas; None if this process decides alone.
        live: its configuration.
    """
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/replicas", summary="Who else decides, and by which configuration?")
    async def replicas() -> ReplicasOut:
        """Return every other replica, how old its last message is, and the configuration in force there."""
        if view is None:
            return ReplicasOut(
                transport="none",
                name=None,
                id=None,
                problem=None,
                generation=live.generation,
                configuration=digest(live.in_force),
                heard_picks=0,
                concurrent_picks=0,
                replicas=[],
            )
        return ReplicasOut(
            transport=view.transport,
            name=view.identity.name,
            id=view.identity.id,
            problem=view.problem or None,
            generation=view.word.generation,
            configuration=view.word.digest,
            heard_picks=view.picks.n_heard,
            concurrent_picks=view.picks.n_concurrent,
            replicas=replicas_of(view),
        )

    return router


def replicas_of(view: ReplicasView) -> list[ReplicaOut]:
    """Return the other replicas by name."""
    found = [_replica(each, view.words.get(each.id)) for each in view.siblings()]
    return sorted(found, key=lambda each: (each.name, each.id))


def _replica(sibling: Sibling, word: Word | None) -> ReplicaOut:
    refusal = word.refused.refusal if word is not None and word.refused is not None else ""
    is_heard = word is not None and sibling.state in (SiblingState.LIVE, SiblingState.BEHIND)
    return ReplicaOut(
        name=sibling.name,
        id=sibling.id,
        version=sibling.version,
        state=sibling.state.value,
        age_seconds=round(sibling.age_s, 3),
        missing_messages=sibling.n_missing,
        received_messages=sibling.n_messages,
        received_bytes=sibling.n_bytes,
        generation=word.generation if word is not None and is_heard else None,
        configuration=word.digest if word is not None and is_heard else None,
        problem=sibling.reason or refusal or None,
    )
