"""`/v1/config`: the configuration in force."""

from __future__ import annotations

from fastapi import APIRouter

from ...configs.plain import plain
from ...configs.secrets import masked
from ...routing.plan.live import LiveConfig
from .models import ConfigOut


def config_routes(live: LiveConfig) -> APIRouter:
    """Return the route of `/v1/config`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/config", summary="The configuration in force")
    async def config() -> ConfigOut:
        """Return every key with its value, defaults included and secrets masked, and files refused since."""
        return ConfigOut(
            generation=live.generation,
            files=[str(path) for path in live.paths],
            refused=live.refusals,
            config=masked(plain(live.in_force)),
        )

    return router
