"""The shipped manifests, rendered, and what an API server would say of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import jsonschema
import kubernetes_validate
import pytest
import yaml

from support.tree import ROOT

CHART = ROOT / "deploy" / "charts" / "kvatlas"
GUIDE = ROOT / "deploy" / "kustomize" / "tiered-prefix-cache"
OVERLAYS = sorted(path.name for path in (GUIDE / "overlays").iterdir())
KUBERNETES = "1.32"

Manifest = dict[str, Any]

_RENDER = "import go_template, json, pathlib, sys; sys.stdout.buffer.write(go_template.render(pathlib.Path(sys.argv[1]), json.load(sys.stdin)))"
"""Renders in a process of its own: Go's template engine ends the process when a template fails."""

_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}


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
            "matchLabels", matchLabels=_STRINGS | {"minProperties": 1, "maxProperties": 64}
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
        selector=_object("matchLabels", matchLabels=_STRINGS),
        podMetricsEndpoints={
            "type": "array",
            "items": _object(
                "port", port={"type": "string"}, path={"type": "string"}, interval={"type": "string", "pattern": "^[0-9]+(s|m)$"}
            ),
        },
    ),
}  # fmt: skip
"""Custom resource -> schema of its spec, of the fields that the manifests use: nothing unknown passes."""


def check(manifest: Manifest) -> None:
    """Nothing when an API server would take the manifest, unknown fields refused.

    Raises:
        Exception: of the validating library.
    """
    name = f"{manifest['apiVersion']} {manifest['kind']}"
    if name in SPECS:
        assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(manifest["metadata"]["labels"], _STRINGS)
        jsonschema.validate(manifest["spec"], SPECS[name])
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def helm(values: Manifest, *, release: str = "qwen", namespace: str = "ns") -> list[Manifest]:
    """The chart's objects as `helm template` gives them, or an error that names what is wrong with the values.

    Rendered by Go's own template engine with sprig. It has no `include`, which the chart does not use, and an unknown
    value is an error where helm has it empty.

    Raises:
        ValueError: a template fails; with its words.
    """
    chart: Manifest = yaml.safe_load((CHART / "Chart.yaml").read_text())
    merged = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    data = {
        "Values": merged,
        "Release": {"Name": release, "Namespace": namespace},
        "Chart": {"AppVersion": chart["appVersion"]},
    }
    found: list[Manifest] = []
    for template in sorted((CHART / "templates").iterdir()):
        done = subprocess.run(
            [sys.executable, "-c", _RENDER, str(template)], input=json.dumps(data).encode(), capture_output=True, check=False
        )  # fmt: skip
        if done.returncode:
            raise ValueError(done.stderr.decode())
        found += [each for each in yaml.safe_load_all(done.stdout) if each]
    return found


@cache
def kustomize(overlay: str) -> tuple[Manifest, ...]:
    """The objects of one of the guide's overlays, where kubectl is at hand: Debian's own is too old for them."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, at least 1.21, is not installed: nothing else here renders kustomize overlays")
    done = subprocess.run(
        ["kubectl", "kustomize", str(GUIDE / "overlays" / overlay)], capture_output=True, check=True
    )
    return tuple(yaml.safe_load_all(done.stdout))


def only(manifests: list[Manifest] | tuple[Manifest, ...], kind: str) -> Manifest:
    """The one object of a kind."""
    (found,) = (each for each in manifests if each["kind"] == kind)
    return found


def container(manifest: Manifest, name: str) -> Manifest:
    """A Deployment's container."""
    containers = cast("list[Manifest]", manifest["spec"]["template"]["spec"]["containers"])
    return next(each for each in containers if each["name"] == name)


def values_of(overlay: str) -> Manifest:
    """The chart's values for an overlay's servers."""
    found: Manifest = yaml.safe_load((GUIDE / "overlays" / overlay / "values.yaml").read_text())
    return found


def _merged(under: Manifest, over: Manifest) -> Manifest:
    """As helm merges values: mappings key by key, all else replaced."""
    merged = dict(under)
    for key, value in over.items():
        there = merged.get(key)
        merged[key] = (
            _merged(cast("Manifest", there), cast("Manifest", value))
            if isinstance(there, dict) and isinstance(value, dict)
            else value
        )
    return merged
