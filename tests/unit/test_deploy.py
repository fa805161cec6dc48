"""The shipped chart, overlays and Dockerfile: valid, and true to the program that they start."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main
import yaml
from helm_python import HelmError, lint

from kvatlas.api.cli import app
from kvatlas.api.reference_flags import our_command_line
from kvatlas.configs.address import ZmqAddress
from kvatlas.configs.loader import load_config
from kvatlas.events.topics import parse_topic
from kvatlas.sim.envoy import find_envoy
from support.api_server import NEEDED
from support.custom_resources import Manifest
from support.manifests import (
    CHART,
    OVERLAYS,
    check,
    container,
    helm,
    kubectl_kustomize,
    kustomize,
    only,
    values_of,
)
from support.tree import ROOT

SERVERS = {"modelServers": {"matchLabels": {"llm-d.ai/guide": "x"}, "targetPorts": [{"number": 8000}]}}
ROUTER = {"router": SERVERS}
PICKER_FILE = (ROOT / "configs" / "tiered-v1.yaml").read_text()

SHAPES: dict[str, Manifest] = {
    "bare": ROUTER,
    "inferencepool chart": {
        "inferencePool": SERVERS | {"targetPorts": [{"number": 8000}, {"number": 8001}]},
        "inferenceExtension": {
            "replicas": 1, "failureMode": "FailClose", "pluginsConfigFile": "tiered.yaml",
            "pluginsCustomConfig": {"tiered.yaml": PICKER_FILE},
            "flags": {"v": 4, "zap-encoder": "json", "secure-serving": False},
            "env": [{"name": "A", "value": "b"}],
            "extraServicePorts": [{"name": "extra", "port": 81, "targetPort": 8081}],
            "monitoring": {"prometheus": {"enabled": True}},
        },
        "experimentalHttpRoute": {"enabled": True, "inferenceGatewayName": "g", "baseModel": "m"},
        "provider": {"name": "gke"},
    },
    "router chart": {
        "router": SERVERS | {
            "epp": {"replicas": 3, "pluginsConfigFile": "default-plugins.yaml", "podAnnotations": {"a": 1},
                    "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
                    "volumes": [{"name": "m", "emptyDir": {}}], "volumeMounts": [{"name": "m", "mountPath": "/models"}],
                    "flags": {"ha-enable-leader-election=false": "", "metrics-staleness-threshold": "2s"}},
            "monitoring": {"interval": "5s", "prometheus": {"enabled": True, "extraLabels": {"release": "p"}}},
        },
        "httpRoute": {"create": True, "inferenceGatewayNamespace": "gateways"},
        "provider": {"name": "istio"},
    },
    "all active": {"router": SERVERS | {"epp": {"replicas": 3, "leaderElection": False}}, "networkPolicy": {"enabled": True}},
    "standalone": {"router": SERVERS | {"inferencePool": {"create": False}, "proxy": {"enabled": True}}, "networkPolicy": {"enabled": True}},
}  # fmt: skip
"""Values as people set them."""


def arguments(manifests: list[Manifest]) -> dict[str, Any]:
    """What `kvatlas serve` understands of the container's arguments."""
    given = cast("list[str]", container(only(manifests, "Deployment"), "epp")["args"])
    commands: Any = typer.main.get_command(app)
    context = commands.commands["serve"].make_context("serve", list(our_command_line(given).arguments))
    return {name: value for name, value in context.params.items() if value is not None}


@pytest.mark.parametrize("shape", SHAPES)
def test_chart_is_what_an_api_server_takes(shape: str) -> None:
    manifests = helm(SHAPES[shape])
    for manifest in manifests:
        check(manifest)
        assert manifest["metadata"]["namespace"] == "ns"


@pytest.mark.parametrize("shape", SHAPES)
def test_objects_of_the_chart_fit_each_other(shape: str) -> None:
    manifests = helm(SHAPES[shape])
    deployment, service = only(manifests, "Deployment"), only(manifests, "Service")
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert template["spec"]["serviceAccountName"] == only(manifests, "ServiceAccount")["metadata"]["name"]
    ports = {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}
    named = [port["targetPort"] for port in service["spec"]["ports"] if isinstance(port["targetPort"], str)]
    assert ports.issuperset(named)
    files = set(only(manifests, "ConfigMap")["data"])
    args = arguments(manifests)
    assert {Path(args[flag]).name for flag in ("config", "config_file") if flag in args} <= files
    epp = container(deployment, "epp")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert epp[probe]["grpc"]["port"] == args["grpc_health_port"]
    if args.get("pool_name"):
        pool = only(manifests, "InferencePool")
        assert (pool["metadata"]["name"], args["pool_namespace"]) == (args["pool_name"], "ns")
        reference = pool["spec"]["endpointPickerRef"]
        assert reference["name"] == service["metadata"]["name"]
        assert reference["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("shape", SHAPES)
def test_role_of_the_chart_is_what_the_program_asks_for(shape: str) -> None:
    manifests = helm(SHAPES[shape])
    may = {
        (verb, resource)
        for rule in only(manifests, "Role")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    uses = {"pods"}
    if shape != "standalone":
        uses |= {"inferencepools", "inferenceobjectives", "inferencemodelrewrites"}
    if shape == "router chart":
        uses.add("leases")
    assert may == {(verb, resource) for verb, resource in NEEDED if resource in uses}


@pytest.mark.parametrize("shape", SHAPES)
def test_files_of_the_chart_load(shape: str, tmp_path: Path) -> None:
    manifests = helm(SHAPES[shape])
    for name, text in only(manifests, "ConfigMap")["data"].items():
        if name != "envoy.yaml":
            (tmp_path / name).write_text(text)
            load_config(tmp_path / name)


async def test_envoy_of_the_standalone_shape_takes_its_file(tmp_path: Path) -> None:
    manifests = helm(SHAPES["standalone"])
    file = tmp_path / "envoy.yaml"
    file.write_text(only(manifests, "ConfigMap")["data"]["envoy.yaml"])
    envoy = await asyncio.create_subprocess_exec(
        find_envoy(), "--mode", "validate", "-c", str(file),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await envoy.communicate()
    assert envoy.returncode == 0, output.decode()
    assert arguments(manifests)["secure_serving"] == "false"  # as the file has it


@pytest.mark.parametrize(
    ("shape", "strategy", "is_elected", "budgets"),
    [
        pytest.param("bare", "RollingUpdate", "false", 0, id="one"),
        pytest.param("router chart", "Recreate", "false", 0, id="leader_switched_off_by_flag"),
        pytest.param("all active", "RollingUpdate", "false", 1, id="all_active"),
    ],
)
def test_replicas_are_replaced_as_their_readiness_allows(
    shape: str, strategy: str, is_elected: str, budgets: int
) -> None:
    manifests = helm(SHAPES[shape])
    assert only(manifests, "Deployment")["spec"]["strategy"]["type"] == strategy
    assert arguments(manifests)["ha_enable_leader_election"] == is_elected
    assert sum(each["kind"] == "PodDisruptionBudget" for each in manifests) == budgets


def test_one_of_several_replicas_is_ready_when_nothing_else_is_said() -> None:
    manifests = helm({"router": SERVERS | {"epp": {"replicas": 2}}})
    assert arguments(manifests)["ha_enable_leader_election"] == "true"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({}, "matchLabels", id="no_labels"),
        pytest.param(ROUTER | {"provider": {"name": "aws"}}, "provider.name is", id="provider"),
        pytest.param(
            ROUTER | {"inferenceExtension": {"failureMode": "FailClosed"}},
            "want FailOpen or FailClose",
            id="mode",
        ),
        pytest.param(
            ROUTER | {"inferenceExtension": {"pluginsConfigFile": "x.yaml"}},
            "not in pluginsCustomConfig",
            id="file",
        ),
    ],
)
def test_values_are_refused_when_they_make_no_picker(values: Manifest, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        helm(values)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_what_an_api_server_takes(overlay: str) -> None:
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


def flag(server: Manifest, name: str) -> str:
    """The value of a container's flag, empty without it."""
    prefix = f"--{name}="
    return next((arg.removeprefix(prefix) for arg in server["args"] if arg.startswith(prefix)), "")


def gibibytes(text: str) -> int:
    return int(text.removesuffix("Gi")) * 2**30


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace(
        "\\\n", " "
    )
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_image_is_pinned_small_and_runs_as_nobody() -> None:
    lines = instructions()
    arguments = dict(rest.split("=") for word, rest in lines if word == "ARG")
    assert re.fullmatch(r"3\.\d+\.\d+-slim-\w+", arguments["PYTHON"])
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
    }  # nothing is run or added
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


def test_everything_that_is_installed_is_sent_to_the_builder() -> None:
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


def test_version_of_the_chart_is_the_programs() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "charts" / "kvatlas" / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert (chart["version"], chart["appVersion"]) == (project[1], project[1])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_what_kubectl_makes_of_it(overlay: str) -> None:
    def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
        return {(each["kind"], each["metadata"]["name"]): each for each in manifests}

    assert by_name(kustomize(overlay)) == by_name(kubectl_kustomize(overlay))


def test_image_has_nothing_that_hadolint_warns_of() -> None:
    found = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile"], capture_output=True, check=False
    )
    assert (found.returncode, found.stdout.decode()) == (0, "")


def test_chart_passes_the_checks_of_helm() -> None:
    report = lint(CHART, ROUTER, strict=True, kube_version="v1.32.0")
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]
