"""`/v1/capacities`: how many blocks each tier of a server can hold, and its change."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import Field

from ...configs.errors import ConfigError
from ...routing.plan.capacities import capacities_of
from ...routing.plan.live import LiveConfig
from .answers import Answers
from .errors import BadRequestError
from .force import Force
from .models import ChangedOut, ErrorOut, Own

Changed = Annotated[dict[str, Any], Body()]

_IMPOSSIBLE: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorOut, "description": "a name or value that is impossible"}
}


class CapacitiesOut(Own):
    """Answer of `GET /v1/capacities`."""

    generation: int = Field(description="of the configuration in force")
    capacities: dict[str, int | str] = Field(
        description="tier -> blocks of each server, `auto` or `unlimited`"
    )


def capacities_routes(live: LiveConfig, answers: Answers) -> APIRouter:
    """Return the routes of `/v1/capacities`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/capacities", summary="The capacities in force")
    async def capacities() -> CapacitiesOut:
        """Return `lruCapacityPerServer` of every tier."""
        return CapacitiesOut(generation=live.generation, capacities=capacities_of(live.in_force))

    @router.put("/capacities", summary="Change capacities", responses=_IMPOSSIBLE)
    async def change(changed: Changed, *, force: Force = False) -> ChangedOut:
        """Change the capacities of the named tiers; the others stay. With several replicas, on all or on none.

        What a smaller tier cannot hold is evicted. The file is not written: when it is loaded again, its capacities are in force.
        """
        try:
            return await answers.set_capacities(changed, force=force)
        except ConfigError as error:
            raise BadRequestError(str(error)) from None

    return router
