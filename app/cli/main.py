"""The `kvatlas` command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
import uvloop
from prometheus_client import disable_created_metrics
from rich.console import Console

from ...configs.address import HostPort
from ...configs.errors import ConfigError
from ...configs.listeners import ExtProcConfig, ServerConfig, TlsConfig
from ...configs.loader import LoadedConfig
from ...configs.plain import plain
from ...configs.schema import KVAtlasConfig
from ...events.errors import KVAtlasError
from ...routing.plan.config_files import ConfigFiles
from ...routing.plan.json_schema import json_schema
from ...routing.plan.load import load_scheduled
from ...routing.plan.plan import make_plan
from ..app import App
from ..worker import run_worker
from ..workers.link import WorkerSockets
from ..workers.supervisor import Supervisor
from . import ask, sim
from .cluster_flags import ClusterFlags
from .exit_status import NOT_GOOD, WRONG_USE, fail, say_on_stderr
from .reference_flags import our_command_line

log = logging.getLogger(__name__)

app = typer.Typer(
    name="kvatlas",
    help="Endpoint picker and KV-cache location index for fleets of LLM servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at configuration files.", no_args_is_help=True)
app.add_typer(config_app, name="config")
ask.register(app)
sim.register(app)

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Configuration file.", metavar="FILE")]
PickerFile = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        help="EndpointPickerConfig file; beside --config it gives plugins and profiles only.",
        metavar="FILE",
    ),
]
Compat = Annotated[
    Literal["none", "llm-d"] | None,
    typer.Option(help="Overrides extProc.compat: do as the reference endpoint picker does."),
]
SecureServing = Annotated[
    Literal["true", "false"] | None,
    typer.Option(help="Whether extProc speaks TLS; true makes a certificate where no file has one."),
]
CertPath = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder with tls.crt and tls.key, read again when they change."),
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
    str | None, typer.Option(metavar="SELECTOR", help="Label selector of pods, in place of a pool.")
]
EndpointTargetPorts = Annotated[
    str | None, typer.Option(metavar="PORTS", help="Their ports, with commas between.")
]
Kubeconfig = Annotated[str | None, typer.Option(metavar="FILE", help="How to reach the API server.")]
LeaderElection = Annotated[
    Literal["true", "false"] | None,
    typer.Option("--ha-enable-leader-election", help="Whether one of several processes is ready at a time."),
]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Overrides the file's listener.")]
Port = Annotated[int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Overrides its port alone.")]
IgnoreUnknown = Annotated[
    bool, typer.Option("--ignore-unknown-plugins", help="Leave out plugins that kvatlas does not have.")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]


@app.command()
def serve(
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
    cert_path: CertPath = None,
    pool_name: PoolName = None,
    pool_namespace: PoolNamespace = None,
    pool_group: PoolGroup = None,
    endpoint_selector: EndpointSelector = None,
    endpoint_target_ports: EndpointTargetPorts = None,
    kubeconfig: Kubeconfig = None,
    ha_enable_leader_election: LeaderElection = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the endpoint picker, the index and its REST API until SIGTERM."""
    _log_to_stderr(log_level)
    cluster = ClusterFlags(
        pool_name=pool_name,
        pool_namespace=pool_namespace,
        pool_group=pool_group,
        endpoint_selector=endpoint_selector,
        endpoint_target_ports=endpoint_target_ports,
        kubeconfig=kubeconfig,
        leader_election=ha_enable_leader_election,
    )
    if config is None and config_file is None and not cluster.name_endpoints:
        fail("--config FILE is missing; an EndpointPickerConfig may come as --config-file FILE")

    def with_flags(said: KVAtlasConfig) -> KVAtlasConfig:
        server = _with_ports(said.server, ext_proc=grpc_port, health=grpc_health_port, metrics=metrics_port)
        server = _with_addresses(server, ext_proc=ext_proc, health=health, rest=rest, metrics=metrics)
        server = _with_tls(server, secure_serving, cert_path)
        streams = _with_compat(said.ext_proc, compat)
        said = _with_cluster(said, cluster)
        return msgspec.structs.replace(said, server=server, ext_proc=streams)

    files = ConfigFiles(config, config_file, ignore_unknown_plugins, with_flags)
    loaded = _load(files.load)
    for note in loaded.notes:
        log.info("%s", note)
    if loaded.config.server.workers > 1:
        raise typer.Exit(_serve_with_workers(loaded.config, files, log_level))
    try:
        uvloop.run(App(loaded.config, files).run())
    except KVAtlasError as error:
        fail(str(error))


@app.command()
def demo(
    *,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running until Ctrl-C.")] = False,
) -> None:
    """Simulated fleet, real Envoy: round robin against kvatlas on the same workload."""
    from ...sim.demo import run_demo  # noqa: PLC0415 - the simulator is not needed to serve

    raise typer.Exit(run_demo(Console(), seed=seed, keep=keep))


@config_app.command("check")
def config_check(file: FileArgument, *, ignore_unknown_plugins: IgnoreUnknown = False) -> None:
    """Say whether a file and the endpoints it lists are valid, and if not, where and why. Status 1: they are not."""
    loaded = _load(ConfigFiles(file, ignore_unknown=ignore_unknown_plugins).load, refused=NOT_GOOD)
    plan = make_plan(loaded.config)
    console = Console(soft_wrap=True, highlight=False)
    for note in (*loaded.notes, *plan.notes):
        console.print(note, markup=False)
    n_endpoints, n_scorers = len(plan.config.endpoints.static), len(plan.profile.scorers)
    console.print(
        f"{file}: good, {n_endpoints} endpoints, {len(plan.config.tiers)} tiers, {n_scorers} scorers"
    )


@config_app.command("show")
def config_show(file: FileArgument, *, ignore_unknown_plugins: IgnoreUnknown = False) -> None:
    """Print a file as kvatlas understands it, defaults included. Status 1: it is not valid."""
    loaded = _load(lambda: load_scheduled(file, ignore_unknown=ignore_unknown_plugins), refused=NOT_GOOD)
    sys.stdout.write(msgspec.yaml.encode(plain(make_plan(loaded.config).config)).decode())


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of configuration files."""
    sys.stdout.write(json_schema())


def main() -> None:
    """Entry point of the `kvatlas` script."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a time stamp beside each counter doubles the series and tells nothing
    command, *arguments = sys.argv[1:] or [""]
    if command == "serve":
        line = our_command_line(arguments)
        if line.without_effect:
            say_on_stderr(f"flags that have no effect here: {', '.join(line.without_effect)}")
        app(args=[command, *line.arguments])
    else:
        app()


def _load(load: Callable[[], LoadedConfig], *, refused: int = WRONG_USE) -> LoadedConfig:
    try:
        return load()
    except ConfigError as error:
        fail(str(error), refused)


def _with_addresses(server: ServerConfig, **flags: str | None) -> ServerConfig:
    given = {name: _listener(name, address) for name, address in flags.items() if address is not None}
    return msgspec.structs.replace(server, **given)


def _with_ports(server: ServerConfig, **flags: int | None) -> ServerConfig:
    """The listeners with other ports; one that is off listens on every interface."""
    given: dict[str, str] = {}
    for name, port in flags.items():
        if port is not None:
            address: str = getattr(server, name) or "0.0.0.0:0"
            given[name] = str(HostPort(HostPort.parse(address, lowest_port=0).host, port))
    return msgspec.structs.replace(server, **given)


def _with_cluster(said: KVAtlasConfig, flags: ClusterFlags) -> KVAtlasConfig:
    try:
        return flags.of(said)
    except ValueError as error:
        fail(str(error))


def _with_compat(streams: ExtProcConfig, compat: Literal["none", "llm-d"] | None) -> ExtProcConfig:
    return msgspec.structs.replace(streams, compat=compat) if compat is not None else streams


def _with_tls(
    server: ServerConfig, secure: Literal["true", "false"] | None, folder: Path | None
) -> ServerConfig:
    """TLS of extProc as the reference's flags have it: none, the files of a folder, or a certificate made at the start."""
    tls: TlsConfig = server.tls
    if secure == "false":
        tls = TlsConfig(self_signed=False)
    elif folder is not None:
        files = {"cert_file": str(folder / "tls.crt"), "key_file": str(folder / "tls.key")}
        tls = msgspec.structs.replace(tls, **files, self_signed="auto", http=False)
    elif secure == "true" and not tls.cert_file:
        tls = msgspec.structs.replace(tls, self_signed=True, http=False)
    return msgspec.structs.replace(server, tls=tls)


def _listener(name: str, address: str) -> str:
    """The address of a listener flag; empty switches the listener off."""
    try:
        return str(HostPort.parse(address, lowest_port=0)) if address else ""
    except ValueError as error:
        fail(f"--{name.replace('_', '-')}: {error}")


def _serve_with_workers(config: KVAtlasConfig, files: ConfigFiles, log_level: str) -> int:
    """Exit status of several workers on successive ports."""
    sockets = WorkerSockets(config.server.workers)

    def run(worker: int) -> int:
        _log_to_stderr(log_level, who=f"worker {worker} ")
        try:
            run_worker(config, files, sockets, worker)
        except KVAtlasError as error:
            say_on_stderr(str(error))
            return WRONG_USE
        return 0

    try:
        return Supervisor(config.server.workers, run, gives_up=WRONG_USE).serve()
    finally:
        sockets.close()


def _log_to_stderr(level: str, *, who: str = "") -> None:
    names = ("debug", "info", "warning", "error")
    if level.lower() not in names:
        fail(f"--log-level is {level!r}, want one of {', '.join(names)}")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it tells of every start and stop
    form = f"%(asctime)s {who}%(levelname)-7s %(name)s: %(message)s"
    logging.basicConfig(level=level.upper(), format=form, force=True)


if __name__ == "__main__":
    main()
