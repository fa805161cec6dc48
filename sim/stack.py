"""Simulated servers behind a real Envoy, with kvatlas, another picker or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .envoy import EnvoyConfig, EnvoyProcess, gateway_config, without_picker
from .errors import DemoError
from .fleet import Fleet
from .kvatlas_process import KVAtlasProcess
from .model_text import TokenizerText
from .picker_process import PickerProcess
from .server import ServerConfig

HOST = "127.0.0.1"
ANY_PORT = (HOST, 0)
HEALTHY_S, POLL_S = 15.0, 0.05
"""Longest wait for a picker to pass Envoy's health checks, and the time between two looks."""


@dataclass(frozen=True, slots=True)
class Site:
    """What all runs have in common.

    Attributes:
        servers: configurations of the simulated servers.
        text: tokenizer of their model.
        model: folder of the model.
        envoy: the executable.
        folder: for configurations and logs.
    """

    servers: Sequence[ServerConfig]
    text: TokenizerText
    model: Path
    envoy: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class Stack:
    """The parts of one run.

    Attributes:
        picker: picks endpoints; None for round robin.
    """

    fleet: Fleet
    envoy: EnvoyProcess
    picker: KVAtlasProcess | PickerProcess | None = None

    def check(self) -> None:
        """Check that the picker still runs.

        Raises:
            DemoError: it has ended.
        """
        if self.picker is not None:
            self.picker.check()


@asynccontextmanager
async def round_robin(site: Site) -> AsyncGenerator[Stack]:
    """Run the servers behind Envoy alone."""
    async with Fleet(site.servers, site.text) as fleet:
        config = gateway_config(
            "duplex", gateway=ANY_PORT, admin=ANY_PORT, picker=ANY_PORT, servers=fleet.addresses
        )
        async with EnvoyProcess(without_picker(config), binary=site.envoy) as envoy:
            yield Stack(fleet, envoy)


@asynccontextmanager
async def with_kvatlas(
    site: Site, sections: Mapping[str, object] | None = None, *, picker_config: Path | None = None
) -> AsyncGenerator[Stack]:
    """Run the servers with kvatlas.

    Args:
        site: servers, model and Envoy.
        sections: of its configuration, beside those for these servers.
        picker_config: an EndpointPickerConfig beside it.

    Raises:
        DemoError: a part did not start.
    """
    file, listener = site.folder / "kvatlas.yaml", f"{HOST}:0"
    async with Fleet(site.servers, site.text) as fleet:
        fleet.write_kvatlas_config(
            file, tokenizer=site.model, ext_proc=listener, rest=listener, sections=sections or {}
        )
        log = site.folder / "kvatlas.log"
        async with KVAtlasProcess(file, log=log, picker_config=picker_config) as kvatlas:
            gateway = _gateway(fleet, kvatlas.addresses["extProc"])
            async with EnvoyProcess(gateway, binary=site.envoy) as envoy:
                yield Stack(fleet, envoy, kvatlas)


@asynccontextmanager
async def with_picker(site: Site, command: str, config: Path) -> AsyncGenerator[Stack]:
    """Run the servers with another picker; see `PickerProcess`.

    Raises:
        DemoError: a part did not start, or the picker does not pass the health checks of Envoy.
    """
    async with (
        Fleet(site.servers, site.text) as fleet,
        PickerProcess(command, config=config, servers=fleet.addresses, folder=site.folder) as picker,
        EnvoyProcess(_gateway(fleet, picker.address), binary=site.envoy) as envoy,
    ):
        await _until_healthy(envoy, picker)
        yield Stack(fleet, envoy, picker)


def _gateway(fleet: Fleet, picker: tuple[str, int]) -> EnvoyConfig:
    return gateway_config("duplex", gateway=ANY_PORT, admin=ANY_PORT, picker=picker, servers=fleet.addresses)


async def _until_healthy(envoy: EnvoyProcess, picker: PickerProcess) -> None:
    """Wait until Envoy uses the picker: without it all requests would go round robin."""
    try:
        async with asyncio.timeout(HEALTHY_S):
            while not await envoy.is_picker_healthy():
                picker.check()
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise DemoError(
            f"the picker does not pass Envoy's gRPC health checks on {picker.address[1]}, the port of {{port}}; "
            f"a reference picker needs --health-checking=true --secure-serving=false\n{picker.tail()}"
        ) from None
