from __future__ import annotations

from typing import Literal

import pytest

from kvatlas.app.cli.cluster_flags import ClusterFlags
from kvatlas.app.cli.reference_flags import our_command_line
from kvatlas.configs.cluster import KubernetesConfig
from support.fleets import make_config, make_endpoint, with_endpoints

CHART = [
    "--pool-name", "vllm", "--pool-namespace", "ns", "--pool-group", "inference.networking.k8s.io",
    "--zap-encoder", "json", "--config-file", "/config/plugins.yaml", "--ha-enable-leader-election",
    "--grpc-health-port", "9003", "--v=4", "--tracing=false", "--metrics-endpoint-auth=false",
]  # fmt: skip


def test_command_line_of_the_published_charts_keeps_its_effective_flags() -> None:
    found = our_command_line(CHART)
    assert found.arguments == (
        "--pool-name", "vllm", "--pool-namespace", "ns", "--pool-group", "inference.networking.k8s.io",
        "--config-file", "/config/plugins.yaml", "--ha-enable-leader-election=true", "--grpc-health-port", "9003",
        "--metrics-endpoint-auth=false",
    )  # fmt: skip
    assert found.reference.given == {"zap-encoder": "json", "v": "4", "tracing": "false"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(["--secure-serving"], ["--secure-serving=true"], id="bare_switch"),
        pytest.param(["--secure-serving=F"], ["--secure-serving=false"], id="go_truth_value"),
        pytest.param(
            ["--secure-serving", "false", "x"], ["--secure-serving=false", "x"], id="value_behind_a_switch"
        ),
        pytest.param(["--tracing", "false", "x"], ["x"], id="value_behind_a_switch_of_its_own"),
        pytest.param(["-secure-serving=1"], ["--secure-serving=true"], id="one_dash"),
        pytest.param(["--secure-serving=maybe"], ["--secure-serving=maybe"], id="no_truth_value"),
        pytest.param(
            ["--ha-enable-leader-election=false", ""],
            ["--ha-enable-leader-election=false"],
            id="empty_rendering",
        ),
        pytest.param(
            ["--metrics", "", "--grpc-port=1", ""],
            ["--metrics", "", "--grpc-port=1"],
            id="empty_value_of_ours",
        ),
        pytest.param(["-v", "2", "--grpc-port", "9002"], ["--grpc-port", "9002"], id="value_apart"),
        pytest.param(["--v"], list[str](), id="value_missing_at_the_end"),
        pytest.param(["--grpc-port=9002"], ["--grpc-port=9002"], id="ours_as_it_is"),
        pytest.param(["--unknown", "x"], ["--unknown", "x"], id="unknown_as_it_is"),
        pytest.param(["--kv-cache-usage-percentage-metric", '"sglang:usage"'], list[str](), id="in_quotes"),
    ],
)
def test_flags_of_the_reference_read_as_ours(given: list[str], expected: list[str]) -> None:
    assert list(our_command_line(given).arguments) == expected


FILE = make_config(
    endpoints={"static": [], "kubernetes": {"endpointSelector": "a=b", "targetPorts": [1], "namespace": "n"}}
)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(ClusterFlags(), FILE.endpoints.kubernetes, id="none"),
        pytest.param(
            ClusterFlags(pool_name="p"), KubernetesConfig(inference_pool="p", namespace="n"), id="pool"
        ),
        pytest.param(
            ClusterFlags(endpoint_selector="c=d", endpoint_target_ports="8000, 8001", pool_namespace="m"),
            KubernetesConfig(endpoint_selector="c=d", target_ports=(8000, 8001), namespace="m"),
            id="selector",
        ),
        pytest.param(
            ClusterFlags(kubeconfig="/k"),
            KubernetesConfig(endpoint_selector="a=b", target_ports=(1,), namespace="n", kubeconfig="/k"),
            id="kubeconfig_alone",
        ),
    ],
)
def test_flags_override_the_file(flags: ClusterFlags, expected: KubernetesConfig) -> None:
    assert flags.of(FILE).endpoints.kubernetes == expected


def test_flags_override_static_endpoints() -> None:
    static = with_endpoints(make_endpoint("a"))
    assert ClusterFlags(pool_name="p").of(static).endpoints.static == ()


@pytest.mark.parametrize(("flag", "enabled"), [("true", True), ("false", False), (None, False)])
def test_flag_decides_whether_to_join_the_election(
    flag: Literal["true", "false"] | None, enabled: bool
) -> None:
    assert ClusterFlags(leader_election=flag).of(FILE).leader_election.enabled is enabled


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(
            ClusterFlags(endpoint_selector="a", endpoint_target_ports="x"), "found 'x'", id="no_ports"
        ),
        pytest.param(
            ClusterFlags(endpoint_selector="a", endpoint_target_ports="0"), "found '0'", id="no_port"
        ),
    ],
)
def test_ports_that_are_none_are_refused(flags: ClusterFlags, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flags.of(FILE)
