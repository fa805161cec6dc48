"""The custom resources in use, as their CRDs have them: schema of each spec, defaults that an API server fills in.

Foreign kinds have only the fields that the manifests use, inference kinds have all; unknown fields are refused.
Sources: gateway-api-inference-extension 1.6 and its v1alpha2, llm-d-router, Gateway API 1.3, Istio, GKE, the Prometheus
operator; only facts of their APIs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema

Manifest = dict[str, Any]

STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_NAME = {"type": "string", "minLength": 1, "maxLength": 253}
_GROUP = {
    "type": "string",
    "maxLength": 253,
    "pattern": r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_KIND = {
    "type": "string",
    "minLength": 1,
    "maxLength": 63,
    "pattern": "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$",
}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_LABELS = {
    "type": "object",
    "additionalProperties": {
        "type": "string", "maxLength": 63, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
    },
}  # fmt: skip
_FAILURE_MODE = {"type": "string", "enum": ["FailOpen", "FailClose"], "default": "FailClose"}
_SERVICE = {"group": _GROUP | {"default": ""}, "kind": _KIND | {"default": "Service"}, "name": _NAME}


def _object(required: str, **properties: Any) -> Manifest:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(items: Manifest, **bounds: Any) -> Manifest:
    return {"type": "array", "items": items} | bounds


def _strings(*values: str) -> Manifest:
    return {"type": "string", "enum": list(values)}


_REFERENCE = _object("group kind name", group=_GROUP, kind=_KIND, name=_NAME)

_POOL = _object(
    "selector targetPorts",
    selector=_object("matchLabels", matchLabels=_LABELS | {"minProperties": 1, "maxProperties": 64}),
    targetPorts=_list(_object("number", number=_PORT), minItems=1, maxItems=8, uniqueItems=True),
    appProtocol=_strings("http", "kubernetes.io/h2c") | {"default": "http"},
    endpointPickerRef=_object("name", **_SERVICE, port=_object("number", number=_PORT), failureMode=_FAILURE_MODE)
    | {"if": {"properties": {"kind": {"const": "Service"}}}, "then": {"required": ["port"]}},
)  # fmt: skip

_OLD_POOL = _object(
    "selector targetPortNumber extensionRef",
    selector=_LABELS,
    targetPortNumber=_PORT,
    extensionRef=_object("name", **_SERVICE, portNumber=_PORT, failureMode=_FAILURE_MODE),
)


def _pool_reference(default_group: str) -> Manifest:
    return _object(
        "name",
        group=_GROUP | {"default": default_group},
        kind=_KIND | {"default": "InferencePool"},
        name=_NAME,
    )


def _objective(default_group: str) -> Manifest:
    return _object(
        "poolRef",
        poolRef=_pool_reference(default_group),
        priority={"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    )


def _objective_of_pools(default_group: str) -> Manifest:
    """Return the present schema, in which any of three fields names the pools."""
    older, reference = _objective(default_group), _pool_reference(default_group)
    operator = _strings("In", "NotIn", "Exists", "DoesNotExist")
    expression = _object("key operator", key=_NAME, operator=operator, values=_list({"type": "string"}))
    selector = _object("", matchLabels=_LABELS, matchExpressions=_list(expression))
    return _object("", **older["properties"], poolRefs=_list(reference, minItems=1), poolSelector=selector)


def _rewrite(default_group: str) -> Manifest:
    model = _object(
        "value", type=_strings("Exact") | {"default": "Exact"}, value={"type": "string", "minLength": 1}
    )
    target = _object(
        "modelRewrite",
        modelRewrite={"type": "string"},
        weight={"type": "integer", "minimum": 1, "maximum": 1_000_000},
    )
    rule = _object("", matches=_list(_object("model", model=model)), targets=_list(target, minItems=1))
    return _object("poolRef rules", poolRef=_pool_reference(default_group), rules=_list(rule))  # fmt: skip


_ROUTE = _object(
    "parentRefs rules",
    parentRefs=_list(_object("name", group=_GROUP, kind=_strings("Gateway"), name=_NAME, namespace=_NAME)),
    rules=_list(
        _object(
            "matches backendRefs",
            matches=_list(
                _object(
                    "path",
                    path=_object("type value", type=_strings("PathPrefix", "Exact"), value={"type": "string"}),
                    headers=_list(
                        _object(
                            "name value", type=_strings("Exact"), name={"type": "string"}, value={"type": "string"}
                        )
                    ),
                )
            ),
            backendRefs=_list(_REFERENCE),
            timeouts=_object("request", request={"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
        )
    ),
)  # fmt: skip

_GATEWAY = _object(
    "gatewayClassName listeners",
    gatewayClassName=_NAME,
    listeners=_list(
        _object("name port protocol", name=_NAME, port=_PORT, protocol=_strings("HTTP")), minItems=1, maxItems=64
    ),
)  # fmt: skip

_HEALTH_CHECK = _object("requestPath port", requestPath={"type": "string"}, port=_PORT)
_GRPC_HEALTH_CHECK = _object("grpcServiceName port", grpcServiceName={"type": "string"}, port=_PORT)
_HEALTH_CHECK_POLICY = _object(
    "targetRef default",
    targetRef=_REFERENCE,
    default=_object(
        "config",
        timeoutSec={"type": "integer"},
        checkIntervalSec={"type": "integer"},
        config=_object(
            "type", type=_strings("HTTP", "GRPC"), httpHealthCheck=_HEALTH_CHECK, grpcHealthCheck=_GRPC_HEALTH_CHECK
        ),
    ),
)  # fmt: skip
_BACKEND_POLICY = _object(
    "targetRef default",
    targetRef=_REFERENCE,
    default=_object(
        "timeoutSec", timeoutSec={"type": "integer"}, logging=_object("enabled", enabled={"type": "boolean"})
    ),
)  # fmt: skip
_DESTINATION_RULE = _object(
    "host trafficPolicy",
    host={"type": "string"},
    trafficPolicy=_object(
        "tls",
        tls=_object("mode", mode=_strings("SIMPLE"), insecureSkipVerify={"type": "boolean"}),
        connectionPool=_object("", http=_object("", http2MaxRequests={"type": "integer"})),
    ),
)
_SCRAPED = {"type": "string", "pattern": "^[0-9]+(s|m)$"}
_SECRET = _object("name key", name=_NAME, key={"type": "string"})
_SCHEME = {"enum": ["http", "https"]}
_TLS = _object("", insecureSkipVerify={"type": "boolean"})
_POD_MONITOR = _object(
    "selector podMetricsEndpoints",
    selector=_object("matchLabels", matchLabels=STRINGS),
    podMetricsEndpoints=_list(
        _object(
            "port",
            port={"type": "string"},
            path={"type": "string"},
            interval=_SCRAPED,
            authorization=_object("credentials", type={"type": "string"}, credentials=_SECRET),
            scheme=_SCHEME,
            tlsConfig=_TLS,
        )
    ),
)
_POD_MONITORING = _object(
    "selector endpoints",
    selector=_object("matchLabels", matchLabels=STRINGS),
    endpoints=_list(
        _object(
            "port",
            port={"type": "string"},
            path={"type": "string"},
            interval=_SCRAPED,
            authorization=_object("credentials", credentials=_object("secret", secret=_SECRET)),
            scheme=_SCHEME,
            tls=_TLS,
        )
    ),
)

POOL_GROUP = "inference.networking.k8s.io"


@dataclass(frozen=True)
class CustomResource:
    """One kind: its group and version, kind, plural, and the schema of its spec."""

    api: str
    kind: str
    plural: str
    spec: Manifest

    def defaulted(self, manifest: Mapping[str, Any]) -> Manifest:
        """Return the manifest as an API server stores it, with defaults.

        Raises:
            jsonschema.ValidationError: the CRD refuses it.
        """
        jsonschema.validate(manifest["spec"], self.spec)
        filled = copy.deepcopy(dict(manifest))
        _fill(filled["spec"], self.spec)
        return filled

    def definition(self) -> Manifest:
        """Return the CustomResourceDefinition, without rules that no structural schema can hold."""
        group, _, version = self.api.partition("/")
        schema = _structural(self.spec)
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{self.plural}.{group}",
                # groups under k8s.io belong to Kubernetes, which requires this mark on schemas that are not official
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": group,
                "names": {"kind": self.kind, "plural": self.plural},
                "scope": "Namespaced",
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema}}},
                    }
                ],
            },
        }


CUSTOM_RESOURCES: tuple[CustomResource, ...] = (
    CustomResource(f"{POOL_GROUP}/v1", "InferencePool", "inferencepools", _POOL),
    CustomResource("inference.networking.x-k8s.io/v1alpha2", "InferencePool", "inferencepools", _OLD_POOL),
    *(
        resource
        for api, objective in (
            ("llm-d.ai/v1alpha2", _objective_of_pools),
            ("inference.networking.x-k8s.io/v1alpha2", _objective),
        )
        for resource in (
            CustomResource(api, "InferenceObjective", "inferenceobjectives", objective(POOL_GROUP)),
            CustomResource(api, "InferenceModelRewrite", "inferencemodelrewrites", _rewrite(POOL_GROUP)),
        )
    ),
    CustomResource("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", _ROUTE),
    CustomResource("gateway.networking.k8s.io/v1", "Gateway", "gateways", _GATEWAY),
    CustomResource("networking.gke.io/v1", "HealthCheckPolicy", "healthcheckpolicies", _HEALTH_CHECK_POLICY),
    CustomResource("networking.gke.io/v1", "GCPBackendPolicy", "gcpbackendpolicies", _BACKEND_POLICY),
    CustomResource("networking.istio.io/v1", "DestinationRule", "destinationrules", _DESTINATION_RULE),
    CustomResource("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", _POD_MONITOR),
    CustomResource("monitoring.googleapis.com/v1", "PodMonitoring", "podmonitorings", _POD_MONITORING),
)


def custom_resource(api: str, name: str) -> CustomResource | None:
    """Return the resource of that group, version and kind or plural; None if it is not listed here."""
    return next(
        (each for each in CUSTOM_RESOURCES if each.api == api and name in (each.kind, each.plural)), None
    )


def _fill(value: Any, schema: Manifest) -> None:
    """Fill in the defaults of a value that fits the schema."""
    for name, each in schema.get("properties", {}).items():
        if "default" in each:
            value.setdefault(name, each["default"])
        if name in value:
            _fill(value[name], each)
    if "items" in schema:
        for item in value:
            _fill(item, schema["items"])


def _structural(schema: Manifest) -> Manifest:
    """Return the schema without the keywords that structural schemas forbid."""
    kept = {key: each for key, each in schema.items() if key not in ("if", "then", "uniqueItems")}
    if kept.get("default") == "":  # an old server reads it as null
        del kept["default"]
    if kept.get("additionalProperties") is False:
        del kept["additionalProperties"]
    if not kept.get("required", True):
        del kept["required"]
    for key in ("items", "additionalProperties"):
        if key in kept:
            kept[key] = _structural(kept[key])
    if "properties" in kept:
        kept["properties"] = {name: _structural(each) for name, each in kept["properties"].items()}
    return kept
