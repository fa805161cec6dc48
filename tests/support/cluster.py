"""A pool, its pods, and a process that follows them in the fake API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from support.api_server import ApiServerDouble

PODS = "/api/v1/namespaces/ns/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"


def pod(number: int, **annotations: str) -> dict[str, Any]:
    said = {f"kvatlas.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return {
        "metadata": {"labels": {"app": "a"}, "annotations": {"kvatlas.io/events-port": ""} | said},
        "status": {"podIP": f"127.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pool(port: int = 9) -> dict[str, Any]:
    return {"spec": {"selector": {"matchLabels": {"app": "a"}}, "targetPorts": [{"number": port}]}}


def access(double: ApiServerDouble, folder: Path) -> dict[str, Any]:
    """Return the configuration of a process that follows the pool `mine`."""
    kubeconfig = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": double.url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "ns"}}],
    }
    (folder / "kubeconfig").write_bytes(msgspec.yaml.encode(kubeconfig))
    return {"endpoints": {"kubernetes": {"inferencePool": "mine", "kubeconfig": "kubeconfig"}}}
