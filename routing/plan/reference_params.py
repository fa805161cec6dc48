"""Parameters of plugins without effect, checked as the reference checks them.

A plugin whose parameters the reference never reads is not here, and takes any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from ...scorers.core.params import NoParams, PluginParams

_Count = Annotated[int, Meta(ge=0)]
_AtLeastOne = Annotated[int, Meta(ge=1)]
_NotNegative = Annotated[float, Meta(ge=0)]


class ConcurrencyDetectorParams(PluginParams, frozen=True):
    """Parameters of `concurrency-detector`."""

    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """What is counted."""
    max_concurrency: _AtLeastOne = 100
    """Requests in flight of a saturated server."""
    max_token_concurrency: _AtLeastOne = 1_000_000
    """Tokens in flight of a saturated server."""
    headroom: _NotNegative = 0.0
    """Share above the limit that its filter accepts."""


class ProgramAwareFairnessParams(PluginParams, frozen=True):
    """Parameters of `program-aware-fairness`."""

    strategy: Literal["las"] = "las"
    """Strategy: least attained service."""
    las_weight_service: _NotNegative = 0.8
    """Weight of the attained service."""
    las_weight_head_wait: _NotNegative = 0.2
    """Weight of the wait of a flow's first request."""
    las_half_life_seconds: _NotNegative = 60.0
    """Half-life of the attained service; 0: it never decays."""
    eviction_ttl_seconds: _Count = 3600
    """Time after which an idle program is forgotten; 0: never."""
    eviction_sweep_seconds: _Count = 300
    """Time between two searches for idle programs."""


class StaticUsageLimitParams(PluginParams, frozen=True):
    """Parameters of `static-usage-limit-policy`."""

    threshold: float = 1.0
    """Saturation up to which every band is served."""


class PriorityHoldbackParams(PluginParams, frozen=True):
    """Parameters of `priority-holdback-policy`."""

    min_ceiling: Annotated[float, Meta(ge=0, lt=1)]
    """Saturation up to which the lowest band is served."""
    max_ceiling: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Saturation up to which the highest band is served."""
    shape: Literal["linear"] = "linear"
    """Course between the two."""
    domain: Literal["rank", "value"] = "rank"
    """Whether a band counts by its rank or its priority."""


class ModelsSourceParams(PluginParams, frozen=True):
    """Parameters of `models-data-source`."""

    scheme: Literal["http", "https"] = "http"
    """Scheme of the URL."""
    path: str = "/v1/models"
    """Path of the URL."""
    insecure_skip_verify: bool = True
    """Whether certificates are not verified."""
    ca_cert_path: str = ""
    """File with the authorities."""
    client_cert_path: str = ""
    """File with the client's certificate."""
    client_key_path: str = ""
    """File with its key."""
    interval: str | None = None
    """Time between two calls."""


class NotificationSourceParams(PluginParams, frozen=True):
    """Parameters of `k8s-notification-source`."""

    version: str
    """API version of the objects."""
    kind: str
    """Kind of the objects."""
    group: str = ""
    """API group of the objects; empty: the core group."""


NO_EFFECT_PARAMS: Mapping[str, type[PluginParams]] = {
    "concurrency-detector": ConcurrencyDetectorParams,
    "program-aware-fairness": ProgramAwareFairnessParams,
    "static-usage-limit-policy": StaticUsageLimitParams,
    "priority-holdback-policy": PriorityHoldbackParams,
    "soft-reflective-ceiling-policy": NoParams,
    "models-data-source": ModelsSourceParams,
    "k8s-notification-source": NotificationSourceParams,
}
"""Plugin type without effect -> its parameters."""
