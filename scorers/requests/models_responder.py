"""`models-responder`: `GET /v1/models` is answered with the models of all endpoints."""

from __future__ import annotations

from ..core.around import ModelsResponder
from ..core.params import NoParams
from ..core.registry import Registry

PLUGIN_TYPE = "models-responder"


def register(registry: Registry) -> None:
    """Register `models-responder`."""
    registry.responders.add(PLUGIN_TYPE, NoParams, lambda _params, _context: ModelsResponder(PLUGIN_TYPE))
