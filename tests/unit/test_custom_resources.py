"""The schemas for manifests and for the API server's double: they refuse what the CRDs refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import jsonschema
import pytest

from support.custom_resources import CUSTOM_RESOURCES, Manifest, custom_resource

POOL: Manifest = {
    "selector": {"matchLabels": {"app": "a"}},
    "targetPorts": [{"number": 8000}],
    "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
}
OBJECTIVE: Manifest = {"poolRef": {"name": "mine"}}
NO_LABELS: Manifest = {"matchLabels": {}}
NOTHING: list[Manifest] = []
TARGETS: list[Manifest] = [{"modelRewrite": "other", "weight": 1}]


def spec_of(kind: str, spec: Manifest, api: str = "inference.networking.k8s.io/v1") -> Manifest:
    """Return the spec as an API server stores it."""
    resource = custom_resource(api, kind)
    assert resource is not None
    return dict(resource.defaulted({"spec": spec})["spec"])


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(POOL, id="whole"),
        pytest.param({k: v for k, v in POOL.items() if k != "endpointPickerRef"}, id="without_picker"),
        pytest.param(POOL | {"targetPorts": [{"number": 8000 + n} for n in range(8)]}, id="eight_ports"),
        pytest.param(POOL | {"selector": {"matchLabels": {"app": ""}}}, id="empty_label"),
        pytest.param(POOL | {"endpointPickerRef": {"name": "epp", "kind": "Other"}}, id="no_service_no_port"),
    ],
)
def test_pool_is_taken(spec: Manifest) -> None:
    assert spec_of("InferencePool", spec)["targetPorts"] == spec["targetPorts"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(POOL | {"selector": NO_LABELS}, id="no_label"),
        pytest.param(POOL | {"selector": {"matchLabels": {f"a{n}": "" for n in range(65)}}}, id="65_labels"),
        pytest.param(POOL | {"selector": {"matchLabels": {"a": "b" * 64}}}, id="long_label"),
        pytest.param(POOL | {"selector": {"matchLabels": {"a": "-b"}}}, id="odd_label"),
        pytest.param(POOL | {"selector": {"app": "a"}}, id="selector_of_the_older_group"),
        pytest.param(POOL | {"targetPorts": NOTHING}, id="no_port"),
        pytest.param(POOL | {"targetPorts": [{"number": 8000 + n} for n in range(9)]}, id="nine_ports"),
        pytest.param(POOL | {"targetPorts": [{"number": 8000}] * 2}, id="port_twice"),
        pytest.param(POOL | {"targetPorts": [{"number": 65536}]}, id="port_too_high"),
        pytest.param(POOL | {"endpointPickerRef": {"name": "epp"}}, id="service_without_port"),
        pytest.param(
            POOL | {"endpointPickerRef": POOL["endpointPickerRef"] | {"failureMode": "FailClosed"}},
            id="mode_as_a_readme_writes_it",
        ),
        pytest.param(POOL | {"appProtocol": "grpc"}, id="protocol"),
        pytest.param(POOL | {"targetPort": 8000}, id="unknown_field"),
    ],
)
def test_pool_is_refused(spec: Manifest) -> None:
    with pytest.raises(jsonschema.ValidationError):
        spec_of("InferencePool", spec)


@pytest.mark.parametrize(
    ("kind", "spec", "is_taken"),
    [
        pytest.param("InferenceObjective", OBJECTIVE | {"priority": -1}, True, id="negative_priority"),
        pytest.param("InferenceObjective", OBJECTIVE | {"priority": 2**31}, False, id="priority_of_64_bits"),
        pytest.param("InferenceObjective", {"poolRef": {"group": "a"}}, False, id="without_name_of_the_pool"),
        pytest.param("InferenceModelRewrite", OBJECTIVE | {"rules": [{"targets": TARGETS}]}, True, id="for_all"),
        pytest.param("InferenceModelRewrite", OBJECTIVE | {"rules": [{"targets": NOTHING}]}, False, id="no_target"),
        pytest.param(
            "InferenceModelRewrite",
            OBJECTIVE | {"rules": [{"matches": [{"model": {"value": ""}}], "targets": TARGETS}]},
            False,
            id="empty_model",
        ),
    ],
)  # fmt: skip
def test_objects_about_a_pool_fit_their_kinds(kind: str, spec: Manifest, is_taken: bool) -> None:
    found: Any = None
    for api in ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"):
        if is_taken:
            found = spec_of(kind, spec, api)["poolRef"]
            assert found == {
                "name": "mine",
                "group": "inference.networking.k8s.io",
                "kind": "InferencePool",
            }
        else:
            with pytest.raises(jsonschema.ValidationError):
                spec_of(kind, spec, api)


@pytest.mark.parametrize(("api", "is_taken"), [("llm-d.ai", True), ("inference.networking.x-k8s.io", False)])
@pytest.mark.parametrize("spec", [{}, {"poolRefs": [{"name": "mine"}]}, {"poolSelector": {}}], ids=str)
def test_objective_may_name_its_pools_otherwise_in_the_newer_group(
    api: str, is_taken: bool, spec: Manifest
) -> None:
    with contextlib.nullcontext() if is_taken else pytest.raises(jsonschema.ValidationError):
        spec_of("InferenceObjective", spec, f"{api}/v1alpha2")


def test_defaults_are_the_crds() -> None:
    spec = spec_of("InferencePool", POOL)
    assert spec["appProtocol"] == "http"
    assert spec["endpointPickerRef"] == {
        "group": "", "kind": "Service", "name": "epp", "port": {"number": 9002}, "failureMode": "FailClose"
    }  # fmt: skip


@pytest.mark.parametrize("resource", CUSTOM_RESOURCES, ids=lambda each: f"{each.api} {each.kind}")
def test_schema_is_one(resource: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(resource.spec)
    definition = resource.definition()
    assert definition["metadata"]["name"] == f"{resource.plural}.{resource.api.partition('/')[0]}"
