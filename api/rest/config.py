"""`/v1/config` and `/v1/weights`: what is in force, and weights that change at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body

from ...configs.errors import ConfigError
from ...configs.plain import plain
from ...configs.secrets import masked
from ..live import LiveConfig
from .errors import BadRequestError
from .models import ConfigOut, ErrorOut, WeightsOut

Changed = Annotated[dict[str, Any], Body(examples=[{"queue": 3, "cpuPrefixCache": 0.5}])]


SetWeights = Callable[[Mapping[str, object]], Awaitable[WeightsOut]]
"""See `Answers.set_weights`."""


def config_routes(live: LiveConfig, set_weights: SetWeights) -> APIRouter:
    """`/v1/config` and `/v1/weights`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/config", summary="The configuration in force")
    async def config() -> ConfigOut:
        """Every key with its value, defaults included and secrets masked, and what was refused since."""
        return ConfigOut(
            generation=live.generation,
            files=[str(path) for path in live.files.paths] if live.files else [],
            refused=live.refusals,
            config=masked(plain(live.in_force)),
        )

    @router.put(
        "/weights",
        summary="Change weights",
        responses={400: {"model": ErrorOut, "description": "a name or value that is impossible"}},
    )
    async def weights(changed: Changed) -> WeightsOut:
        """Changes the weights named, for every decision from now on; the others stay.

        The file is not written: when it is loaded again, its weights are in force.
        """
        try:
            return await set_weights(changed)
        except ConfigError as error:
            raise BadRequestError(str(error)) from None

    return router
