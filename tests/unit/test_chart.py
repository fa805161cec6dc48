"""The shipped Helm chart: valid, and consistent with the program that it starts."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml
from helm_python import HelmError, lint, parse_set_string

from kvatlas.configs.loader import load_config
from kvatlas.sim.envoy import find_envoy
from support.api_server import NEEDED
from support.chart_values import ROUTER, SERVERS, SHAPES
from support.custom_resources import Manifest
from support.manifests import CHART, check, container, helm, of_kind, only, serve_arguments
from support.tree import ROOT

OLD_GROUP = "inference.networking.x-k8s.io"


@pytest.mark.parametrize("shape", SHAPES)
def test_chart_is_accepted_by_an_api_server(shape: str) -> None:
    manifests = helm(SHAPES[shape])
    for manifest in manifests:
        check(manifest)
        assert manifest["metadata"]["namespace"] == "ns"


@pytest.mark.parametrize("shape", SHAPES)
def test_objects_of_the_chart_fit_each_other(shape: str) -> None:
    manifests = helm(SHAPES[shape])
    deployment = only(manifests, "Deployment")
    services = {each["metadata"]["name"]: each for each in of_kind(manifests, "Service")}
    service = services[deployment["metadata"]["name"]]
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert template["spec"]["serviceAccountName"] == only(manifests, "ServiceAccount")["metadata"]["name"]
    ports = {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}
    named = [
        port["targetPort"]
        for each in services.values()
        for port in each["spec"]["ports"]
        if isinstance(port["targetPort"], str)
    ]
    assert ports.issuperset(named)
    files = set(only(manifests, "ConfigMap")["data"])
    args = serve_arguments(only(manifests, "Deployment"), "epp")
    assert {Path(args[flag]).name for flag in ("config", "config_file") if flag in args} <= files
    epp = container(deployment, "epp")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert epp[probe]["grpc"]["port"] == args["grpc_health_port"]
    if shape == "beside another picker":
        assert args["pool_name"] == "theirs"
    elif args.get("pool_name"):
        pool = only(manifests, "InferencePool")
        assert (pool["metadata"]["name"], args["pool_namespace"]) == (args["pool_name"], "ns")
        reference = pool["spec"]["endpointPickerRef"]
        assert reference["name"] == service["metadata"]["name"]
        assert reference["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("shape", SHAPES)
def test_role_of_the_chart_has_the_rights_that_the_program_uses(shape: str) -> None:
    manifests = helm(SHAPES[shape])
    may = {
        (verb, resource)
        for rule in only(manifests, "Role")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    uses = {"pods"}
    if not shape.startswith("standalone"):
        uses |= {"inferencepools", "inferenceobjectives", "inferencemodelrewrites"}
    assert may == {(verb, resource) for verb, resource in NEEDED if resource in uses}


def rules(values: Manifest) -> Iterator[tuple[str, str, str, str]]:
    """Yield API group, kind, verb and object of everything that the Role allows; an empty object is any."""
    for rule in only(helm(values), "Role")["rules"]:
        yield from itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
        )


@pytest.mark.parametrize(
    ("values", "group"),
    [
        pytest.param({}, "inference.networking.k8s.io", id="usual"),
        pytest.param({"router": {"epp": {"flags": {"pool-group": OLD_GROUP}}}}, OLD_GROUP, id="flag"),
        pytest.param({"router": {"epp": {"flags": {f"pool-group={OLD_GROUP}": ""}}}}, OLD_GROUP, id="flag_with_value"),
        pytest.param({"inferenceExtension": {"flags": {"pool-group": OLD_GROUP}}}, OLD_GROUP, id="other_chart"),
        pytest.param({"config": {"endpoints": {"kubernetes": {"poolGroup": OLD_GROUP}}}}, OLD_GROUP, id="file"),
    ],
)  # fmt: skip
def test_role_names_the_group_in_which_the_pool_is_looked_for(values: Manifest, group: str) -> None:
    existing = {"router": {"inferencePool": {"existing": "theirs"}}}
    allowed = {
        (found, verb) for found, kind, verb, _ in rules(over(existing, values)) if kind == "inferencepools"
    }
    assert allowed == {(group, "list"), (group, "watch")}


@pytest.mark.parametrize(
    ("values", "lease"),
    [
        pytest.param({}, "kvatlas-qwen", id="usual"),
        pytest.param({"config": {"leaderElection": {"leaseName": "mine"}}}, "mine", id="named"),
        pytest.param({"router": {"inferencePool": {"create": False}}}, "kvatlas", id="without_pool"),
    ],
)
def test_role_allows_one_lease_alone(values: Manifest, lease: str) -> None:
    electing = {"router": SERVERS | {"epp": {"replicas": 2}}}
    allowed = {(verb, name) for _, kind, verb, name in rules(over(electing, values)) if kind == "leases"}
    assert allowed == {("create", ""), ("get", lease), ("update", lease)}


@pytest.mark.parametrize("flag", [{"pool-namespace": "theirs"}, {"pool-namespace=theirs": ""}])
@pytest.mark.parametrize("pool", [{"existing": "theirs"}, {"create": False}])
def test_role_is_in_the_namespace_that_a_flag_names(flag: Manifest, pool: Manifest) -> None:
    manifests = helm({"router": SERVERS | {"inferencePool": pool, "epp": {"flags": flag}}})
    for manifest in manifests:
        check(manifest)
    role, binding = only(manifests, "Role"), only(manifests, "RoleBinding")
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "theirs"
    assert role["metadata"]["name"] == binding["roleRef"]["name"]
    account = only(manifests, "ServiceAccount")["metadata"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert (account["namespace"], binding["subjects"]) == ("ns", [subject])


@pytest.mark.parametrize("flag", ["ha-enable-leader-election", "ha-enable-leader-election=true"])
def test_role_allows_a_lease_when_a_flag_switches_the_election_on(flag: str) -> None:
    values = {"router": SERVERS | {"epp": {"flags": {flag: True if "=" not in flag else ""}}}}
    assert {kind for _, kind, _, _ in rules(values)} >= {"leases"}
    assert only(helm(values), "Deployment")["spec"]["strategy"]["type"] == "Recreate"


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
    assert (
        serve_arguments(only(manifests, "Deployment"), "epp")["secure_serving"] == "false"
    )  # as in the file


@pytest.mark.parametrize(
    ("shape", "strategy", "is_elected", "budgets"),
    [
        pytest.param("bare", "RollingUpdate", "false", 0, id="one"),
        pytest.param("router chart", "RollingUpdate", "false", 1, id="leader_switched_off_by_flag"),
        pytest.param("all active", "RollingUpdate", "false", 1, id="all_active"),
        pytest.param("replicas by mesh", "RollingUpdate", "false", 1, id="mesh"),
        pytest.param("replicas by valkey", "RollingUpdate", "false", 1, id="valkey"),
    ],
)
def test_replicas_are_replaced_as_their_readiness_allows(
    shape: str, strategy: str, is_elected: str, budgets: int
) -> None:
    manifests = helm(SHAPES[shape])
    assert only(manifests, "Deployment")["spec"]["strategy"]["type"] == strategy
    assert serve_arguments(only(manifests, "Deployment"), "epp")["ha_enable_leader_election"] == is_elected
    assert sum(each["kind"] == "PodDisruptionBudget" for each in manifests) == budgets


def test_one_of_several_replicas_is_ready_by_default() -> None:
    manifests = helm({"router": SERVERS | {"epp": {"replicas": 2}}})
    assert serve_arguments(only(manifests, "Deployment"), "epp")["ha_enable_leader_election"] == "true"


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
            ROUTER | {"inferencePool": {"modelServerProtocol": "grpc"}}, "protocol", id="engines_without_http"
        ),
        pytest.param(
            {"router": SERVERS | {"proxy": {"enabled": True, "proxyType": "agentgateway"}}},
            "want envoy as sidecar",
            id="proxy",
        ),
        pytest.param(
            ROUTER | {"inferenceExtension": {"flags": {"pool-group": OLD_GROUP}}},
            "inferencePool.existing",
            id="group",
        ),
        pytest.param(
            {"router": SERVERS | {"inferencePool": {"create": False}}, "httpRoute": {"create": True}},
            "httpRoute.create",
            id="route_without_pool",
        ),
        pytest.param(
            ROUTER | {"inferenceExtension": {"flags": {"pool-namespace": "theirs"}}},
            "pool-namespace is theirs, and the chart makes the pool in ns",
            id="namespace",
        ),
        pytest.param(ROUTER | {"gateway": {"create": True}}, "gateway.className is empty", id="gateway"),
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


def test_chart_passes_the_checks_of_helm() -> None:
    report = lint(CHART, ROUTER, strict=True, kube_version="v1.32.0")
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


def test_version_of_the_chart_is_the_programs() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "charts" / "kvatlas" / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert (chart["version"], chart["appVersion"]) == (project[1], project[1])


@pytest.mark.parametrize(
    ("values", "secure", "protocol", "n_rules"),
    [
        pytest.param({}, "true", "http2", 0, id="none"),
        pytest.param({"provider": {"name": "gke"}}, "true", "http2", 0, id="gke"),
        pytest.param({"provider": {"name": "istio"}}, "true", "http2", 1, id="istio"),
        pytest.param({"provider": {"name": "kgateway"}}, "true", "http2", 0, id="kgateway"),
        pytest.param({"provider": {"name": "agentgateway"}}, "true", "http2", 0, id="agentgateway"),
        pytest.param(
            {"provider": {"name": "istio"}, "inferenceExtension": {"flags": {"secure-serving": False}}},
            "false", "kubernetes.io/h2c", 0, id="switched_off",
        ),
        pytest.param({"router": SERVERS | {"proxy": {"enabled": True}}}, "false", "kubernetes.io/h2c", 0, id="envoy_beside"),
        pytest.param({"router": SERVERS | {"inferencePool": {"existing": "p"}}}, "false", "kubernetes.io/h2c", 0, id="beside"),
        pytest.param({"inferenceExtension": {"appProtocol": "kubernetes.io/h2c"}}, "true", "kubernetes.io/h2c", 0, id="said"),
    ],
)  # fmt: skip
def test_gateway_picker_and_service_agree_on_tls(
    values: Manifest, secure: str, protocol: str, n_rules: int
) -> None:
    manifests = helm(ROUTER | values)
    assert serve_arguments(only(manifests, "Deployment"), "epp")["secure_serving"] == secure
    assert only(manifests, "Service")["spec"]["ports"][0]["appProtocol"] == protocol
    assert len(of_kind(manifests, "DestinationRule")) == n_rules


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        pytest.param("gke", "gke-l7-regional-external-managed", id="gke"),
        pytest.param("istio", "istio", id="istio"),
        pytest.param("kgateway", "kgateway", id="kgateway"),
        pytest.param("agentgateway", "agentgateway", id="agentgateway"),
        pytest.param("envoy-ai-gateway", "envoy-ai-gateway", id="envoy_ai_gateway"),
        pytest.param("nginx", "nginx", id="nginx"),
    ],
)
def test_route_belongs_to_a_gateway_of_the_providers_class(provider: str, name: str) -> None:
    values = {"gateway": {"create": True}, "httpRoute": {"create": True}, "provider": {"name": provider}}
    manifests = helm(ROUTER | values)
    gateway, route = only(manifests, "Gateway"), only(manifests, "HTTPRoute")
    assert gateway["spec"]["gatewayClassName"] == name
    assert route["spec"]["parentRefs"][0]["name"] == gateway["metadata"]["name"]
    assert ("timeouts" in route["spec"]["rules"][0]) == (provider != "gke")


def test_gke_gets_a_policy_for_each_setting_that_it_cannot_detect() -> None:
    manifests = helm(SHAPES["all that a gateway can have"])
    targets = {
        (each["kind"], each["spec"]["targetRef"]["kind"], each["spec"]["targetRef"]["name"])
        for each in manifests
        if "targetRef" in each.get("spec", {})
    }
    assert targets == {
        ("HealthCheckPolicy", "InferencePool", "qwen"),
        ("HealthCheckPolicy", "Service", "qwen-epp"),
        ("GCPBackendPolicy", "InferencePool", "qwen"),
    }
    assert len(of_kind(helm(ROUTER | {"provider": {"name": "gke"}}), "HealthCheckPolicy")) == 1


def test_objectives_name_the_pool_that_is_made_beside_them() -> None:
    (found,) = of_kind(helm(SHAPES["all that a gateway can have"]), "InferenceObjective")
    reference = found["spec"]["poolRef"]
    assert (found["metadata"]["name"], found["spec"]["priority"]) == ("batch", -1)
    assert (reference["group"], reference["name"]) == ("inference.networking.k8s.io", "qwen")


@pytest.mark.parametrize(
    ("provider", "kind", "endpoints"),
    [
        pytest.param("prometheusoperator", "PodMonitor", "podMetricsEndpoints", id="operator"),
        pytest.param("gmp", "PodMonitoring", "endpoints", id="google"),
    ],
)
def test_metrics_are_scraped_from_the_port_that_the_pod_has(provider: str, kind: str, endpoints: str) -> None:
    authorization = {"credentials": {"name": "s", "key": "k"}}
    monitoring = {
        "provider": {"name": provider},
        "prometheus": {"enabled": True, "authorization": authorization},
    }
    manifests = helm({"router": SERVERS | {"monitoring": monitoring}})
    check(only(manifests, kind))
    monitor, deployment = only(manifests, kind), only(manifests, "Deployment")
    ports = {port["name"] for port in container(deployment, "epp")["ports"]}
    assert {each["port"] for each in monitor["spec"][endpoints]} <= ports
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_pods_are_those_of_the_standalone_charts_selector() -> None:
    args = serve_arguments(only(helm(SHAPES["standalone chart"]), "Deployment"), "epp")
    assert args["endpoint_selector"] == "app in (a, b),!canary"
    assert args["endpoint_target_ports"] == "8000,8001"
    assert "pool_name" not in args


def test_picker_of_another_is_left_alone_when_kvatlas_is_beside_it() -> None:
    manifests = helm(SHAPES["beside another picker"])
    assert sorted(each["kind"] for each in manifests) == [
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding", "Secret", "Service",
        "ServiceAccount",
    ]  # fmt: skip
    args = serve_arguments(only(manifests, "Deployment"), "epp")
    assert (args["pool_name"], args["ha_enable_leader_election"]) == ("theirs", "false")


def commands_of_the_guide() -> list[str]:
    """Return every `helm install` of the guide, in one line."""
    text = (ROOT / "docs" / "kubernetes.md").read_text().replace("\\\n", " ")
    return re.findall(r"^\$ (helm install .*)$", text, re.MULTILINE)


def over(under: Manifest, values: Manifest) -> Manifest:
    """Merge values over those of a file, as Helm does."""
    both = {
        name: over(under[name], cast("Manifest", value))
        for name, value in values.items()
        if isinstance(value, dict) and name in under
    }
    return under | values | both


@pytest.mark.parametrize(
    ("number", "provider", "kinds"),
    [
        pytest.param(0, "istio", {"Gateway", "HTTPRoute", "InferencePool", "DestinationRule"}, id="istio"),
        pytest.param(0, "gke", {"Gateway", "HTTPRoute", "InferencePool", "HealthCheckPolicy"}, id="gke"),
        pytest.param(0, "kgateway", {"Gateway", "HTTPRoute", "InferencePool"}, id="kgateway"),
        pytest.param(1, "none", {"Deployment", "Service"}, id="standalone"),
    ],
)
def test_commands_of_the_guide_make_objects_that_an_api_server_accepts(
    number: int, provider: str, kinds: set[str]
) -> None:
    command = commands_of_the_guide()[number].replace("provider.name=istio", f"provider.name={provider}")
    settings = ",".join(re.findall(r"--set (\S+)", command))
    (file,) = re.findall(r"--values (\S+)", command)
    manifests = helm(over(yaml.safe_load((ROOT / file).read_text()), parse_set_string(settings)))
    assert kinds <= {each["kind"] for each in manifests}
    for manifest in manifests:
        check(manifest)
    image = container(only(manifests, "Deployment"), "epp")["image"]
    assert image.startswith("REGISTRY/kvatlas:")
    assert yaml.safe_load(only(manifests, "ConfigMap")["data"]["kvatlas.yaml"])["policy"] == "latency"
