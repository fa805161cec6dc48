"""The shipped Helm chart: Service, probes, Envoy and Prometheus reach the ports on which the program listens."""

from __future__ import annotations

import itertools

import pytest
import yaml
from helm_python import HelmError, lint

from support.chart_values import ROUTER, SERVERS
from support.custom_resources import Manifest
from support.manifests import CHART, check, container, helm, only, serve_arguments

STANDALONE = {"router": SERVERS | {"inferencePool": {"create": False}, "proxy": {"enabled": True}}}


def with_flags(values: Manifest, flags: Manifest) -> Manifest:
    return values | {"router": values["router"] | {"epp": {"flags": flags}}}


def ports(manifests: list[Manifest]) -> dict[str, int]:
    epp = container(only(manifests, "Deployment"), "epp")
    return {port["name"]: port["containerPort"] for port in epp["ports"]}


@pytest.mark.parametrize(
    ("flags", "server", "moved"),
    [
        pytest.param({"grpc-port": 9005, "metrics-port": 9191}, {}, {"grpc": 9005, "metrics": 9191}, id="flags"),
        pytest.param({"grpc-port=9005": ""}, {}, {"grpc": 9005}, id="flag_with_value"),
        pytest.param({"rest": "0.0.0.0:8085"}, {}, {"rest": 8085}, id="address_in_a_flag"),
        pytest.param({"grpc-health-port": 9103}, {}, {"grpc-health": 9103}, id="health"),
        pytest.param({}, {"extProc": "0.0.0.0:9005", "rest": "[::]:8085", "metrics": "0.0.0.0:9191"},
                     {"grpc": 9005, "rest": 8085, "metrics": 9191}, id="file"),
        pytest.param({"grpc-port": 9006}, {"extProc": "0.0.0.0:9005"}, {"grpc": 9006}, id="flag_before_the_file"),
        pytest.param({}, {"metrics": ""}, {}, id="switched_off"),
    ],
)  # fmt: skip
def test_ports_of_the_pod_are_those_that_the_program_opens(
    flags: Manifest, server: Manifest, moved: dict[str, int]
) -> None:
    manifests = helm(with_flags(ROUTER, flags) | {"config": {"server": server}})
    assert ports(manifests) == {"grpc": 9002, "grpc-health": 9003, "metrics": 9090, "rest": 8080} | moved
    epp = container(only(manifests, "Deployment"), "epp")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert (
            epp[probe]["grpc"]["port"]
            == serve_arguments(only(manifests, "Deployment"), "epp")["grpc_health_port"]
        )


@pytest.mark.parametrize("flag", [{"grpc-port": 9005}, {"grpc-port=9005": ""}, {"ext-proc": "0.0.0.0:9005"}])
def test_envoy_of_the_pod_asks_the_port_that_a_flag_moves(flag: Manifest) -> None:
    envoy = yaml.safe_load(only(helm(with_flags(STANDALONE, flag)), "ConfigMap")["data"]["envoy.yaml"])
    (picker,) = (each for each in envoy["static_resources"]["clusters"] if each["name"] == "kvatlas")
    (group,) = picker["load_assignment"]["endpoints"]
    (endpoint,) = group["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"]["port_value"] == 9005


def test_pod_is_replaced_when_its_envoy_has_another_file() -> None:
    def template(proxy: Manifest) -> Manifest:
        router = STANDALONE["router"]
        annotations: Manifest = only(
            helm({"router": router | {"proxy": {"enabled": True} | proxy}}), "Deployment"
        )["spec"]["template"]["metadata"]["annotations"]
        return annotations

    assert template({"port": 8090}) != template({})


def test_value_of_the_reference_that_cannot_help_is_taken_and_changes_nothing() -> None:
    def envoy(proxy: Manifest) -> object:
        router = STANDALONE["router"] | {"proxy": {"enabled": True} | proxy}
        return only(helm({"router": router}), "ConfigMap")["data"]["envoy.yaml"]

    assert envoy({"failOpen": True}) == envoy({"failOpen": False}) == envoy({})


@pytest.mark.parametrize(
    ("flags", "secure", "protocol"),
    [
        pytest.param({"secure-serving=false": ""}, "false", "kubernetes.io/h2c", id="name_with_value"),
        pytest.param({"secure-serving": 0}, "false", "kubernetes.io/h2c", id="number"),
        pytest.param({"secure-serving": "T"}, "true", "http2", id="as_in_go"),
    ],
)
def test_service_speaks_as_the_flag_says(flags: Manifest, secure: str, protocol: str) -> None:
    manifests = helm(with_flags(ROUTER, flags) | {"provider": {"name": "istio"}})
    assert serve_arguments(only(manifests, "Deployment"), "epp")["secure_serving"] == secure
    assert only(manifests, "Service")["spec"]["ports"][0]["appProtocol"] == protocol
    assert ("DestinationRule" in {each["kind"] for each in manifests}) == (secure == "true")


@pytest.mark.parametrize("provider", ["prometheusoperator", "gmp"])
def test_metrics_of_every_worker_are_scraped_and_let_through(provider: str) -> None:
    monitoring = {"provider": {"name": provider}, "prometheus": {"enabled": True}}
    manifests = helm({
        "router": SERVERS | {"monitoring": monitoring}, "config": {"server": {"workers": 3}},
    })  # fmt: skip
    for manifest in manifests:
        check(manifest)
    found = ports(manifests)
    assert [found[name] for name in ("metrics", "metrics-1", "metrics-2")] == [9090, 9091, 9092]
    assert [found[name] for name in ("rest", "rest-1", "rest-2")] == [8080, 8081, 8082]
    kind, endpoints = (
        ("PodMonitoring", "endpoints") if provider == "gmp" else ("PodMonitor", "podMetricsEndpoints")
    )
    scraped = [each["port"] for each in only(manifests, kind)["spec"][endpoints]]
    assert scraped == ["metrics", "metrics-1", "metrics-2"]
    rules = only(manifests, "NetworkPolicy")["spec"]["ingress"]
    reached = set(itertools.chain.from_iterable([port["port"] for port in rule["ports"]] for rule in rules))
    assert found.keys() == reached


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param(with_flags(STANDALONE, {"secure-serving": True}), "in plain text", id="tls_beside_envoy"),
        pytest.param(STANDALONE | {"config": {"server": {"workers": 2}}}, "router.proxy.port is 8081", id="worker"),
        pytest.param(STANDALONE | {"config": {"server": {"rest": "0.0.0.0:8081"}}}, "router.proxy.port", id="rest"),
    ],
)  # fmt: skip
def test_envoy_of_the_pod_is_refused_when_it_cannot_work(values: Manifest, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        helm(values)


def test_envoy_of_the_pod_ends_after_the_picker_which_tells_its_admin_interface() -> None:
    manifests = helm(STANDALONE)
    spec = only(manifests, "Deployment")["spec"]["template"]["spec"]
    data = only(manifests, "ConfigMap")["data"]
    envoy = yaml.safe_load(data["envoy.yaml"])
    (picker,) = (each for each in envoy["static_resources"]["clusters"] if each["name"] == "kvatlas")
    (check_of_picker,) = picker["health_checks"]
    address = envoy["admin"]["address"]["socket_address"]
    assert [each["name"] for each in spec["containers"]] == ["epp"]
    assert [(each["name"], each["restartPolicy"]) for each in spec["initContainers"]] == [("envoy", "Always")]
    # one that ends is not ready, and still has to answer
    assert check_of_picker["grpc_health_check"]["service_name"] == "liveness"
    told = yaml.safe_load(data["kvatlas.yaml"])["server"]["proxyAdmin"]
    assert told == f"{address['address']}:{address['port_value']}"
    assert (
        "proxyAdmin" not in yaml.safe_load(only(helm(ROUTER), "ConfigMap")["data"]["kvatlas.yaml"])["server"]
    )


@pytest.mark.parametrize(
    ("server", "flags", "least"),
    [
        pytest.param({}, {}, 2 * 2.5 + 2 * 30, id="defaults"),
        pytest.param({"drainTimeout": "5m", "drainNotice": "500ms"}, {}, 1 + 600, id="file"),
        pytest.param({}, {"drain-timeout": "1m30s"}, 5 + 180, id="flag"),
        pytest.param({"drainTimeout": "1h"}, {"drain-timeout=90s": ""}, 5 + 180, id="flag_before_the_file"),
    ],
)
def test_pod_is_not_killed_before_its_last_request_has_ended(
    server: Manifest, flags: Manifest, least: float
) -> None:
    manifests = helm(with_flags(ROUTER, flags) | {"config": {"server": server}})
    check(only(manifests, "Deployment"))
    grace_s = only(manifests, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert max(least, 130) <= grace_s <= max(least + 20, 130)


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [pytest.param("v1.28.9", True, id="1.28"), pytest.param("v1.29.0-gke.100", False, id="1.29")],
)
def test_envoy_of_the_pod_is_refused_by_clusters_without_sidecars(
    version: str, capfd: pytest.CaptureFixture[str], *, is_refused: bool
) -> None:
    lint(CHART, STANDALONE, kube_version=version)  # which writes what an installation fails with
    assert (
        "which Kubernetes has since 1.29; this cluster is v1.28.9" in capfd.readouterr().err
    ) == is_refused


@pytest.mark.parametrize("time", ["5 minutes", 30, "-5s", ""])
def test_time_that_is_none_is_refused_with_its_name(time: object) -> None:
    with pytest.raises(HelmError, match=r"config\.server\.drainNotice is .*, want a duration such as 30s"):
        helm(ROUTER | {"config": {"server": {"drainNotice": time}}})


def test_workers_with_an_elected_leader_are_refused_as_the_program_does() -> None:
    values = {"config": {"server": {"workers": 2}}, "router": SERVERS | {"epp": {"replicas": 2}}}
    with pytest.raises(HelmError, match="only one would be ready"):
        helm(values)
    apart = helm(values | {"router": SERVERS | {"epp": {"replicas": 2, "leaderElection": False}}})
    assert "metrics-1" in ports(apart)


def test_workers_stand_beside_an_envoy_on_another_port() -> None:
    router = STANDALONE["router"] | {"proxy": {"enabled": True, "port": 8000}}
    manifests = helm({"router": router, "config": {"server": {"workers": 2}}})
    envoy = container(only(manifests, "Deployment"), "envoy")
    assert {port["containerPort"] for port in envoy["ports"]}.isdisjoint(ports(manifests).values())


CERTIFICATE = {"certFile": "/tls/tls.crt", "keyFile": "/tls/tls.key"}


@pytest.mark.parametrize("provider", ["prometheusoperator", "gmp"])
@pytest.mark.parametrize(
    ("server", "flags", "is_tls"),
    [
        pytest.param({}, {}, False, id="certificate_of_ext_proc_alone"),
        pytest.param({"tls": CERTIFICATE}, {}, True, id="file"),
        pytest.param({"tls": CERTIFICATE | {"http": False}}, {}, False, id="ext_proc_alone"),
        pytest.param({"tls": CERTIFICATE}, {"secure-serving": False}, False, id="switched_off"),
        pytest.param({"tls": CERTIFICATE}, {"cert-path": "/tls"}, False, id="certificate_by_the_references_flag"),
        pytest.param({"metricsTls": CERTIFICATE}, {"secure-serving": False}, True, id="own_certificate"),
        pytest.param({}, {"metrics-cert-dir": "/tls"}, True, id="own_certificate_by_a_flag"),
    ],
)  # fmt: skip
def test_metrics_are_scraped_over_tls_if_the_program_serves_them_so(
    provider: str, server: Manifest, flags: Manifest, *, is_tls: bool
) -> None:
    monitoring = {"provider": {"name": provider}, "prometheus": {"enabled": True}}
    manifests = helm({
        "router": SERVERS | {"monitoring": monitoring, "epp": {"flags": flags}}, "config": {"server": server},
    })  # fmt: skip
    for manifest in manifests:
        check(manifest)
    kind, endpoints, tls = (
        ("PodMonitoring", "endpoints", "tls")
        if provider == "gmp"
        else ("PodMonitor", "podMetricsEndpoints", "tlsConfig")
    )
    (scraped,) = only(manifests, kind)["spec"][endpoints]
    assert (scraped.get("scheme"), scraped.get(tls)) == (
        ("https", {"insecureSkipVerify": True}) if is_tls else (None, None)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"config": {"replicas": {"transport": "mesh"}}}, "with config.replicas.transport mesh", id="mesh"),
        pytest.param({"router": SERVERS | {"epp": {"replicas": 2}}}, "with an elected leader", id="leader"),
    ],
)  # fmt: skip
def test_workers_are_refused_where_the_program_refuses_them(values: Manifest, message: str) -> None:
    workers = {"config": {"server": {"workers": 2}} | values.get("config", {})}
    with pytest.raises(HelmError, match=message):
        helm(ROUTER | values | workers)
