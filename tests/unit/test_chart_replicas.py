"""The chart with several replicas that decide as one."""

from __future__ import annotations

import base64

import yaml

from support.chart_values import SHAPES
from support.manifests import helm, of_kind, only


def test_replicas_of_a_mesh_find_and_admit_each_other_alone() -> None:
    manifests = helm(SHAPES["replicas by mesh"])
    name = only(manifests, "Deployment")["metadata"]["name"]
    (service,) = [each for each in of_kind(manifests, "Service") if each["spec"].get("clusterIP") == "None"]
    mesh = yaml.safe_load(only(manifests, "ConfigMap")["data"]["kvatlas.yaml"])["replicas"]["mesh"]
    namespace = service["metadata"]["namespace"]
    assert mesh["discover"] == {"dns": f"{name}-replicas.{namespace}:5570"}
    assert service["metadata"]["name"] == f"{name}-replicas"
    assert service["spec"]["publishNotReadyAddresses"] is True
    secret = next(
        each for each in of_kind(manifests, "Secret") if each["metadata"]["name"] == f"{name}-replicas"
    )
    assert len(base64.b64decode(secret["data"]["secret"])) >= 32
    rules = only(manifests, "NetworkPolicy")["spec"]["ingress"]
    (own,) = [each["from"] for each in rules if {"port": "replicas"} in each["ports"]]
    assert own == [{"podSelector": {"matchLabels": service["spec"]["selector"]}}]


def test_replicas_on_a_server_get_its_password() -> None:
    manifests = helm(SHAPES["replicas by valkey"])
    valkey = yaml.safe_load(only(manifests, "ConfigMap")["data"]["kvatlas.yaml"])["replicas"]["valkey"]
    assert valkey["passwordFile"] == "/var/run/secrets/kvatlas-replicas/secret"
    volumes = only(manifests, "Deployment")["spec"]["template"]["spec"]["volumes"]
    (mounted,) = [each["secret"] for each in volumes if each["name"] == "replica-secret"]
    assert mounted == {"secretName": "valkey", "items": [{"key": "password", "path": "secret"}]}
