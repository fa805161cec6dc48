"""The custom resources in use, as schemas of their specs: what their CRDs say of the fields that occur here, unknown ones refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]

_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: str, **properties: Any) -> Manifest:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


_REFERENCE = _object("group kind name", group={"type": "string"}, kind={"type": "string"}, name=_NAME)

SPECS: Mapping[str, Manifest] = {
    "inference.networking.k8s.io/v1 InferencePool": _object(
        "selector targetPorts endpointPickerRef",
        selector=_object(
            "matchLabels", matchLabels=STRINGS | {"minProperties": 1, "maxProperties": 64}
        ),
        targetPorts={
            "type": "array", "minItems": 1, "maxItems": 8, "uniqueItems": True, "items": _object("number", number=_PORT)
        },
        endpointPickerRef=_object(
            "name port", name=_NAME, port=_object("number", number=_PORT), failureMode={"enum": ["FailOpen", "FailClose"]}
        ),
    ),
    "gateway.networking.k8s.io/v1 HTTPRoute": _object(
        "parentRefs rules",
        parentRefs={
            "type": "array",
            "items": _object(
                "name", group={"type": "string"}, kind={"const": "Gateway"}, name=_NAME, namespace=_NAME
            ),
        },
        rules={
            "type": "array",
            "items": _object(
                "matches backendRefs",
                matches={
                    "type": "array",
                    "items": _object(
                        "path",
                        path=_object("type value", type={"enum": ["PathPrefix", "Exact"]}, value={"type": "string"}),
                        headers={
                            "type": "array",
                            "items": _object(
                                "name value", type={"enum": ["Exact"]}, name={"type": "string"}, value={"type": "string"}
                            ),
                        },
                    ),
                },
                backendRefs={"type": "array", "items": _REFERENCE},
                timeouts=_object("request", request={"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
            ),
        },
    ),
    "networking.gke.io/v1 HealthCheckPolicy": _object(
        "targetRef default",
        targetRef=_REFERENCE,
        default=_object(
            "config",
            timeoutSec={"type": "integer"},
            checkIntervalSec={"type": "integer"},
            config=_object(
                "type",
                type={"enum": ["HTTP"]},
                httpHealthCheck=_object("requestPath port", requestPath={"type": "string"}, port=_PORT),
            ),
        ),
    ),
    "networking.gke.io/v1 GCPBackendPolicy": _object(
        "targetRef default",
        targetRef=_REFERENCE,
        default=_object("timeoutSec", timeoutSec={"type": "integer"}, logging=_object("enabled", enabled={"type": "boolean"})),
    ),
    "networking.istio.io/v1 DestinationRule": _object(
        "host trafficPolicy",
        host={"type": "string"},
        trafficPolicy=_object(
            "tls", tls=_object("mode", mode={"enum": ["SIMPLE"]}, insecureSkipVerify={"type": "boolean"})
        ),
    ),
    "monitoring.coreos.com/v1 PodMonitor": _object(
        "selector podMetricsEndpoints",
        selector=_object("matchLabels", matchLabels=STRINGS),
        podMetricsEndpoints={
            "type": "array",
            "items": _object(
                "port", port={"type": "string"}, path={"type": "string"}, interval={"type": "string", "pattern": "^[0-9]+(s|m)$"}
            ),
        },
    ),
}  # fmt: skip
"""Custom resource -> schema of its spec, of the fields that the manifests use: nothing unknown passes."""
