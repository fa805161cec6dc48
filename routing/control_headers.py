"""Headers by which clients and gateways control an endpoint picker, with their current and older names.

Headers are given as lower-case name -> value. The current name wins over the older one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..scorers.core.slo import SLO_HEADERS

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Request header, and key in dynamic metadata, that names the destination to Envoy."""

REQUEST_ID_HEADER = "x-request-id"
DROPPED_REASON_HEADER = "x-llm-d-request-dropped-reason"

_OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
_MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
_FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
_PICKERS_OWN = (
    f"{DESTINATION_HEADER}-served",
    f"{DESTINATION_HEADER}-subset",
    f"{DESTINATION_HEADER}-scores",
    DROPPED_REASON_HEADER,
)
_VIDEO = ("x-llm-d-video-fps", "x-llm-d-video-duration-seconds", "x-llm-d-video-resolution")
SIDECAR_HEADERS = (
    "x-prefiller-host-port",
    "x-prefiller-url",  # of the sidecar before llm-d-router
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
)
"""Addresses that sidecars of engines connect to: a client could make them connect to any host."""

CONTROL_HEADERS: frozenset[str] = frozenset(
    (*_OBJECTIVE, *_MODEL_REWRITE, *_FAIRNESS_ID, *SLO_HEADERS, *_VIDEO, *_PICKERS_OWN, *SIDECAR_HEADERS)
)
"""Headers read or set by the picker, which never reach an engine as a client sent them."""

DEFAULT_FAIRNESS_ID = "default-flow"

MAX_ID_CHARS = 256
"""Length limit of names from clients in kept decisions; a header may be 60 KB long."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def objective(headers: Mapping[str, str]) -> str:
    """Return the name of the request's objective, empty if there is none."""
    return _first(headers, _OBJECTIVE)


def fairness_id(headers: Mapping[str, str], identity: str = "") -> str:
    """Return the fairness id that the request counts for; without header `identity`, if it is not empty."""
    return _first(headers, _FAIRNESS_ID) or identity[:MAX_ID_CHARS] or DEFAULT_FAIRNESS_ID


def model_rewrite(headers: Mapping[str, str]) -> str:
    """Return the model that replaces the request's own, empty if none does."""
    return headers.get(_MODEL_REWRITE[0]) or headers.get(_MODEL_REWRITE[1]) or ""


def only_if_cached(headers: Mapping[str, str]) -> bool:
    """Return whether the request is refused if no prefix of it is cached: `Prefer: if-available`."""
    prefer = headers.get("prefer")
    if prefer is None:
        return False
    return "if-available" in (each.partition(";")[0].strip().lower() for each in prefer.split(","))


def asks_for_models(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request is for the list of models: `GET /v1/models`."""
    return headers.get(":method") == "GET" and path.partition("?")[0].removesuffix("/") == "/v1/models"


def traceparent(headers: Mapping[str, str]) -> str:
    """Return the W3C trace context of the request, empty if it is missing or malformed."""
    value = headers.get("traceparent")
    return value if value is not None and _TRACEPARENT.fullmatch(value) else ""


def _first(headers: Mapping[str, str], names: tuple[str, str]) -> str:
    value = headers.get(names[0]) or headers.get(names[1])
    return value[:MAX_ID_CHARS] if value else ""
