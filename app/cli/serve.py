"""`kvatlas serve`: its flags."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from .cluster_flags import ClusterFlags
from .exit_status import fail, say_on_stderr
from .go_values import BOOLEANS
from .options import IgnoreUnknown
from .overrides import Overrides
from .reference_flags import ReferenceFlags

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Configuration file.", metavar="FILE")]
PickerFile = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        help="EndpointPickerConfig file; with --config, its plugins, profiles and what goes with them.",
        metavar="FILE",
    ),
]
Compat = Annotated[
    Literal["none", "llm-d"] | None,
    typer.Option(help="Overrides extProc.compat: behave as the reference endpoint picker."),
]
SecureServing = Annotated[
    Literal["true", "false"] | None,
    typer.Option(
        help="Whether extProc uses TLS; true makes a self-signed certificate if no file has one, and is the default "
        "without --config."
    ),
]
MetricsAuth = Annotated[
    Literal["true", "false"] | None,
    typer.Option(
        "--metrics-endpoint-auth",
        help="Whether the cluster decides about calls of /metrics; true unless there is --config, which decides then.",
    ),
]
CertPath = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder with tls.crt and tls.key; reloaded when they change."),
]
PoolName = Annotated[
    str | None, typer.Option(metavar="NAME", help="InferencePool whose pods are the endpoints.")
]
PoolNamespace = Annotated[
    str | None, typer.Option(metavar="NAME", help="Namespace of the pool and the pods.")
]
PoolGroup = Annotated[
    Literal["inference.networking.k8s.io", "inference.networking.x-k8s.io"] | None,
    typer.Option(help="API group of the pool."),
]
EndpointSelector = Annotated[
    str | None, typer.Option(metavar="SELECTOR", help="Label selector of pods, instead of a pool.")
]
EndpointTargetPorts = Annotated[
    str | None, typer.Option(metavar="PORTS", help="Ports of these pods, separated by commas.")
]
Kubeconfig = Annotated[str | None, typer.Option(metavar="FILE", help="Kubeconfig file for the API server.")]
LeaderElection = Annotated[
    Literal["true", "false"] | None,
    typer.Option(
        "--ha-enable-leader-election",
        help="Elect a leader: only one of several processes is ready at a time.",
    ),
]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Overrides the listener of the file.")]
Port = Annotated[
    int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Overrides the port of the listener.")
]


def serve(
    context: typer.Context,
    *,
    config: ConfigFile = None,
    config_file: PickerFile = None,
    ext_proc: Address = None,
    health: Address = None,
    rest: Address = None,
    metrics: Address = None,
    grpc_port: Port = None,
    grpc_health_port: Port = None,
    metrics_port: Port = None,
    ignore_unknown_plugins: IgnoreUnknown = False,
    compat: Compat = None,
    secure_serving: SecureServing = None,
    metrics_endpoint_auth: MetricsAuth = None,
    cert_path: CertPath = None,
    pool_name: PoolName = None,
    pool_namespace: PoolNamespace = None,
    pool_group: PoolGroup = None,
    endpoint_selector: EndpointSelector = None,
    endpoint_target_ports: EndpointTargetPorts = None,
    kubeconfig: Kubeconfig = None,
    ha_enable_leader_election: LeaderElection = None,
    log_level: Annotated[
        str | None, typer.Option(help="Log level: debug, info, warning or error; info by default.")
    ] = None,
) -> None:
    """Run the endpoint picker, the index and its REST API until SIGTERM."""
    # Before threads of libraries begin, which would take them, and end the process before they can be handled. The first
    # process of a container would even lose a SIGTERM, and go on until it is killed.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGTERM))

    from ...configs.reading import GivenText
    from .log import log_options
    from .serving import run_server

    reference = context.find_object(ReferenceFlags) or ReferenceFlags()
    given = reference.given
    options = log_options(log_level, given)
    picker: Path | GivenText | None = config_file
    if "config-text" in given:
        if config_file is not None:
            fail("--config-file and --config-text are given; keep one of the two")
        picker = GivenText("--config-text", given["config-text"])
    cluster = ClusterFlags(
        pool_name=pool_name,
        pool_namespace=pool_namespace,
        pool_group=pool_group,
        endpoint_selector=endpoint_selector,
        endpoint_target_ports=endpoint_target_ports,
        kubeconfig=kubeconfig,
        leader_election=ha_enable_leader_election,
    )
    if config is None and picker is None and not cluster.name_endpoints:
        fail("--config FILE is missing; an EndpointPickerConfig may come as --config-file FILE")
    if config is not None and metrics_endpoint_auth is not None:
        metrics_endpoint_auth = None
        say_on_stderr(
            "--metrics-endpoint-auth has no effect beside --config: server.auth.metricsReview decides"
        )
    overrides = Overrides(
        addresses={"ext_proc": ext_proc, "health": health, "rest": rest, "metrics": metrics},
        ports={"ext_proc": grpc_port, "health": grpc_health_port, "metrics": metrics_port},
        compat=compat,
        secure_serving=secure_serving,
        metrics_endpoint_auth=metrics_endpoint_auth,
        cert_path=cert_path,
        cluster=cluster,
        reference=reference,
    )
    follows = given.get("watch-config-file", "true")
    if follows not in BOOLEANS:
        fail(f"--watch-config-file: found {follows!r}, expected true or false")
    raise typer.Exit(
        run_server(
            config,
            picker,
            overrides,
            options,
            ignore_unknown=ignore_unknown_plugins,
            follows=BOOLEANS[follows],
        )
    )
