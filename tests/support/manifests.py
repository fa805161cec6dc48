"""The shipped manifests, rendered, and an API server's validation of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import jsonpatch
import jsonschema
import kubernetes_validate
import typer.main
import yaml
from helm_python import Chart

from kvatlas.app.cli.main import app
from kvatlas.app.cli.reference_flags import our_command_line
from support.custom_resources import STRINGS, Manifest, custom_resource
from support.tree import ROOT

CHART = ROOT / "deploy" / "charts" / "kvatlas"
GUIDE = ROOT / "deploy" / "kustomize" / "tiered-prefix-cache"
OVERLAYS = sorted(path.name for path in (GUIDE / "overlays").iterdir())
SIDECAR = ROOT / "deploy" / "sidecar"
GOLDEN = ROOT / "tests" / "golden" / "kubectl-1.32.4"
KUBERNETES = "1.32"

REFERENCE_PICKER: Manifest = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "qwen-epp", "namespace": "ns", "labels": {}},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"llm-d-router-gateway": "qwen-epp"}},
        "strategy": {"type": "Recreate"},
        "template": {
            "metadata": {"labels": {"llm-d-router-gateway": "qwen-epp"}},
            "spec": {
                "serviceAccountName": "qwen-epp",
                "containers": [
                    {
                        "name": "epp",
                        "image": "epp:1",
                        "args": ["--pool-name", "qwen", "--pool-namespace", "ns"],
                        "ports": [
                            {"name": name, "containerPort": port, "protocol": "TCP"}
                            for name, port in (("grpc", 9002), ("grpc-health", 9003), ("metrics", 9090))
                        ],
                        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
                    }
                ],
                "volumes": [{"name": "config", "configMap": {"name": "qwen-epp"}}],
            },
        },
    },
}
"""A picker as the router chart deploys it, with the fields that matter here."""


def check(manifest: Manifest) -> None:
    """Raise unless an API server would accept the manifest; unknown fields are refused.

    Raises:
        Exception: from the validating library.
    """
    resource = custom_resource(manifest["apiVersion"], manifest["kind"])
    if resource is not None:
        assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(manifest["metadata"]["labels"], STRINGS)
        resource.defaulted(manifest)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def helm(values: Manifest, *, release: str = "qwen", namespace: str = "ns") -> list[Manifest]:
    """Return the chart's objects, as Helm itself renders them.

    Raises:
        HelmError: wrong values or a wrong template, with Helm's message.
    """
    with Chart.load(CHART) as chart:
        texts = chart.render(values, name=release, namespace=namespace)
    return [each for name in sorted(texts) for each in yaml.safe_load_all(texts[name]) if each]


def patched(target: Manifest, patch: Path) -> Manifest:
    """Return a manifest with the JSON patch of a file applied."""
    return cast("Manifest", jsonpatch.apply_patch(target, yaml.safe_load(patch.read_text())))


def kustomize(overlay: str) -> list[Manifest]:
    """Return the objects of one of the guide's overlays.

    Supports only what the overlays use, resources and JSON patches, and refuses all else; a test compares the
    outcome with kubectl's.
    """
    return _built(GUIDE / "overlays" / overlay)


def recorded(name: str) -> list[Manifest]:
    """Return the objects that kubectl made from an overlay, or from "sidecar"."""
    return list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))


def _built(folder: Path) -> list[Manifest]:
    kustomization: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert kustomization.keys() <= {"apiVersion", "kind", "resources", "patches"}, folder
    found: list[Manifest] = []
    for resource in kustomization["resources"]:
        path = (folder / resource).resolve()
        found += _built(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for patch in kustomization.get("patches", []):
        assert patch.keys() == {"target", "patch"}, folder
        target = (patch["target"]["kind"], patch["target"]["name"])
        (at,) = (n for n, each in enumerate(found) if (each["kind"], each["metadata"]["name"]) == target)
        found[at] = jsonpatch.apply_patch(found[at], yaml.safe_load(patch["patch"]))
    return found


def of_kind(manifests: Iterable[Manifest], kind: str) -> list[Manifest]:
    """Return the objects of a kind."""
    return [each for each in manifests if each["kind"] == kind]


def only(manifests: Iterable[Manifest], kind: str) -> Manifest:
    """Return the only object of a kind."""
    (found,) = (each for each in manifests if each["kind"] == kind)
    return found


def container(manifest: Manifest, name: str) -> Manifest:
    """Return the container or the sidecar of a Deployment."""
    spec = manifest["spec"]["template"]["spec"]
    containers = cast("list[Manifest]", [*spec["containers"], *spec.get("initContainers", ())])
    return next(each for each in containers if each["name"] == name)


def serve_arguments(deployment: Manifest, name: str) -> dict[str, Any]:
    """Return the arguments of a container as `kvatlas serve` parses them."""
    given = cast("list[str]", container(deployment, name)["args"])
    commands: Any = typer.main.get_command(app)
    context = commands.commands["serve"].make_context("serve", list(our_command_line(given).arguments))
    return {name: value for name, value in context.params.items() if value is not None}


def values_of(overlay: str) -> Manifest:
    """Return the chart's values for an overlay's servers."""
    found: Manifest = yaml.safe_load((GUIDE / "overlays" / overlay / "values.yaml").read_text())
    return found
