"""The `kvatlas` command."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
import uvloop
from prometheus_client import disable_created_metrics
from rich.console import Console

from ..configs.address import HostPort
from ..configs.errors import ConfigError
from ..configs.loader import load_config
from ..configs.schema import KVAtlasConfig, ServerConfig
from ..events.errors import KVAtlasError
from .app import App

USAGE_ERROR = 2

app = typer.Typer(
    name="kvatlas",
    help="Endpoint picker and KV-cache location index for fleets of LLM servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at configuration files.", no_args_is_help=True)
app.add_typer(config_app, name="config")

ConfigFile = Annotated[Path, typer.Option("--config", help="Configuration file.", metavar="FILE")]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Overrides the file's listener.")]


@app.command()
def serve(
    config: ConfigFile,
    ext_proc: Address = None,
    health: Address = None,
    rest: Address = None,
    metrics: Address = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the endpoint picker, the index and its REST API until SIGTERM."""
    _log_to_stderr(log_level)
    loaded = _load(config)
    overrides = {"ext_proc": ext_proc, "health": health, "rest": rest, "metrics": metrics}
    given = {name: _listener(name, address) for name, address in overrides.items() if address is not None}
    server: ServerConfig = msgspec.structs.replace(loaded.server, **given)
    try:
        uvloop.run(App(msgspec.structs.replace(loaded, server=server)).run())
    except KVAtlasError as error:
        _fail(str(error))


@app.command()
def demo(
    *,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running until Ctrl-C.")] = False,
) -> None:
    """Simulated fleet, real Envoy: round robin against kvatlas on the same workload."""
    from ..sim.demo import run_demo  # noqa: PLC0415 - the simulator is not needed to serve

    raise typer.Exit(run_demo(Console(), seed=seed, keep=keep))


@config_app.command("check")
def config_check(file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Say whether a file is valid, and if not, where and why."""
    loaded = _load(file)
    Console().print(f"{file}: good, {len(loaded.endpoints.static)} endpoints, {len(loaded.tiers)} tiers")


@config_app.command("show")
def config_show(file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Print a file as kvatlas understands it, defaults included."""
    sys.stdout.write(msgspec.yaml.encode(_load(file), enc_hook=str).decode())


def main() -> None:
    """Entry point of the `kvatlas` script."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a time stamp beside each counter doubles the series and tells nothing
    app()


def _load(file: Path) -> KVAtlasConfig:
    try:
        return load_config(file)
    except ConfigError as error:
        _fail(str(error))


def _listener(name: str, address: str) -> str:
    """The address of a listener flag; empty switches the listener off."""
    try:
        return str(HostPort.parse(address, lowest_port=0)) if address else ""
    except ValueError as error:
        _fail(f"--{name.replace('_', '-')}: {error}")


def _fail(message: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True).print(f"kvatlas: {message}", markup=False, highlight=False)
    raise typer.Exit(USAGE_ERROR)


def _log_to_stderr(level: str) -> None:
    names = ("debug", "info", "warning", "error")
    if level.lower() not in names:
        _fail(f"--log-level is {level!r}, want one of {', '.join(names)}")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it tells of every start and stop
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")


if __name__ == "__main__":
    main()
