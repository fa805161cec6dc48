"""The shipped chart, overlays and Dockerfile: valid, and consistent with the program that they start."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvatlas.configs.address import HostPort, ZmqAddress
from kvatlas.configs.loader import load_config
from kvatlas.events.topics import parse_topic
from support.api_server import NEEDED
from support.chart_values import ROUTER
from support.custom_resources import Manifest
from support.manifests import (
    OVERLAYS,
    REFERENCE_PICKER,
    SIDECAR,
    check,
    container,
    helm,
    kustomize,
    only,
    patched,
    recorded,
    serve_arguments,
    values_of,
)
from support.tree import ROOT


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_accepted_by_an_api_server(overlay: str) -> None:
    for manifest in kustomize(overlay):
        check(manifest)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_publishes_where_its_picker_looks(overlay: str, tmp_path: Path) -> None:
    deployment = only(kustomize(overlay), "Deployment")
    server = container(deployment, "modelserver")
    picker = helm(values_of(overlay))
    (tmp_path / "kvatlas.yaml").write_text(only(picker, "ConfigMap")["data"]["kvatlas.yaml"])
    config = load_config(tmp_path / "kvatlas.yaml")
    events = json.loads(flag(server, "kv-events-config"))
    ports = [
        ZmqAddress.parse(events[key].replace("*", "0.0.0.0")).tcp for key in ("endpoint", "replay_endpoint")
    ]
    assert [port.port for port in ports if port] == [config.events.port, config.events.replay_port]
    assert events["publisher"] == "zmq"
    assert events.get("enable_kv_cache_events", False) == (overlay != "sglang-hicache")
    topic = events["topic"].replace("$(POD_IP)", "10.0.0.1").replace("$(POD_PORT)", "8000")
    assert parse_topic(topic.encode()) is not None
    pool = only(picker, "InferencePool")["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert [port["number"] for port in pool["targetPorts"]] == [server["ports"][0]["containerPort"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_has_room_for_its_tiers(overlay: str) -> None:
    manifests = kustomize(overlay)
    deployment = only(manifests, "Deployment")
    server = container(deployment, "modelserver")
    n_ranks = 2
    host_bytes = 0
    if transfer := flag(server, "kv-transfer-config"):
        extra = json.loads(transfer).get("kv_connector_extra_config", {})
        host_bytes = extra.get("cpu_bytes_to_use", 0)
        for tier in extra.get("secondary_tiers", []):
            mounts = [mount["mountPath"] for mount in server["volumeMounts"]]
            assert any(tier["root_dir"].startswith(mount) for mount in mounts)
    if size := flag(server, "hicache-size"):
        host_bytes = n_ranks * int(size) * 10**9
    env = {each["name"]: each.get("value") for each in server["env"]}
    if "LMCACHE_MAX_LOCAL_CPU_SIZE" in env:
        host_bytes = round(n_ranks * float(env["LMCACHE_MAX_LOCAL_CPU_SIZE"]) * 2**30)
    assert 0 < host_bytes + 50 * 2**30 <= gibibytes(server["resources"]["limits"]["memory"])
    claims = {each["metadata"]["name"] for each in manifests if each["kind"] == "PersistentVolumeClaim"}
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert {
        each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each
    } == claims
    assert {mount["name"] for mount in server["volumeMounts"]} == {each["name"] for each in volumes}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_of_an_overlay_are_defined(overlay: str) -> None:
    server = container(only(kustomize(overlay), "Deployment"), "modelserver")
    used = set(re.findall(r"\$\((\w+)\)", " ".join(server["args"])))
    assert used <= {each["name"] for each in server["env"]}


RECORD_AGAIN = "deploy/ has changed: record what kubectl makes of it by tests/support/make_manifests.py"

TAKEN_PORTS = {9002, 9003, 9090, 5557, 8081}
"""Ports of the reference picker, of its ZMQ socket, and of its Envoy."""

ITS_RIGHTS = {
    (verb, kind)
    for verb in ("get", "list", "watch")
    for kind in ("pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites")
}
"""The rights in the Roles of that chart."""


def test_sidecar_needs_no_more_rights_than_the_other_picker() -> None:
    args = serve_arguments(patched(REFERENCE_PICKER, SIDECAR / "patch.yaml"), "kvatlas")
    assert "ha_enable_leader_election" not in args
    assert {(verb, kind) for verb, kind in NEEDED if kind != "leases"} <= ITS_RIGHTS


def test_sidecar_fits_into_the_pod_of_another_picker(tmp_path: Path) -> None:
    deployment = patched(REFERENCE_PICKER, SIDECAR / "patch.yaml")
    check(deployment)
    (config,) = yaml.safe_load_all((SIDECAR / "config.yaml").read_text())
    check(config)
    (tmp_path / "kvatlas.yaml").write_text(config["data"]["kvatlas.yaml"])
    args = serve_arguments(deployment, "kvatlas")
    assert args["pool_name"] == "qwen"
    listens = {int(args[name]) for name in ("grpc_port", "grpc_health_port", "metrics_port")}
    rest = HostPort.parse(load_config(tmp_path / "kvatlas.yaml").server.rest)
    assert not TAKEN_PORTS & (listens | {rest.port})
    sidecar = container(deployment, "kvatlas")
    assert {port["containerPort"] for port in sidecar["ports"]} == listens
    assert sidecar["livenessProbe"]["grpc"]["port"] == args["grpc_health_port"]
    assert "readinessProbe" not in sidecar  # the other picker's pod stays ready
    pod = deployment["spec"]["template"]["spec"]
    names = {each["name"]: each for each in pod["volumes"]}
    assert {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]} == names.keys()
    assert names["kvatlas-config"]["configMap"]["name"] == config["metadata"]["name"]


def test_sidecar_equals_the_output_of_kubectl() -> None:
    (made,) = recorded("sidecar")
    wanted = patched(REFERENCE_PICKER, SIDECAR / "patch.yaml")
    assert container(made, "kvatlas") == container(wanted, "kvatlas"), RECORD_AGAIN
    assert made["spec"]["template"]["spec"]["volumes"] == wanted["spec"]["template"]["spec"]["volumes"]


def flag(server: Manifest, name: str) -> str:
    """Return the value of a container's flag, empty without it."""
    prefix = f"--{name}="
    return next((arg.removeprefix(prefix) for arg in server["args"] if arg.startswith(prefix)), "")


def gibibytes(text: str) -> int:
    return int(text.removesuffix("Gi")) * 2**30


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace(
        "\\\n", " "
    )
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_image_is_small_and_runs_as_an_unprivileged_user() -> None:
    lines = instructions()
    arguments = dict(rest.split("=") for word, rest in lines if word == "ARG")
    assert re.fullmatch(
        r"3\.\d+-slim-\w+", arguments["PYTHON"]
    )  # a patch release would be without later fixes
    assert [rest for word, rest in lines if word == "FROM"] == [
        "python:${PYTHON} AS build",
        "python:${PYTHON}",
    ]
    last = lines[max(number for number, (word, _) in enumerate(lines) if word == "FROM") :]
    assert {word for word, _ in last} == {
        "FROM",
        "COPY",
        "ENV",
        "USER",
        "EXPOSE",
        "ENTRYPOINT",
    }  # no RUN or ADD
    assert ("USER", "65532:65532") in last
    assert ("ENTRYPOINT", '["kvatlas", "serve"]') in last
    (install,) = (rest for word, rest in lines if word == "RUN" and "apt-get" in rest)
    assert "--no-install-recommends" in install
    assert "rm -rf /var/lib/apt/lists/*" in install
    ports = next(rest for word, rest in last if word == "EXPOSE").split()
    chart = helm(ROUTER)
    assert {int(port) for port in ports} == {
        port["containerPort"] for port in container(only(chart, "Deployment"), "epp")["ports"]
    }
    security = only(chart, "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == "65532:65532"


def test_every_installed_file_is_sent_to_the_builder() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {
        "api",
        "configs",
        "events",
        "indexer",
        "scorers",
        "sim",
        "pyproject.toml",
        "setup.py",
        "constraints.txt",
    } <= kept
    assert all((ROOT / each).exists() for each in kept)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_equals_the_output_of_kubectl(overlay: str) -> None:
    def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
        return {(each["kind"], each["metadata"]["name"]): each for each in manifests}

    assert by_name(kustomize(overlay)) == by_name(recorded(overlay)), RECORD_AGAIN


def test_image_passes_hadolint() -> None:
    found = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile"], capture_output=True, check=False
    )
    assert (found.returncode, found.stdout.decode()) == (0, "")
