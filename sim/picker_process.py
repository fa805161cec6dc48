"""Another endpoint picker as a child process, in kvatlas's place."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from .child_process import ChildProcess
from .envoy import Address
from .errors import CompareError
from .held_port import HeldPort

HOST = "127.0.0.1"
PLACEHOLDERS = ("{port}", "{health}", "{metrics}", "{ports}", "{endpoints}", "{config}")


class PickerProcess:
    """A picker, running from `start` to `stop`, or inside `async with`.

    Args:
        command: its command line, split as by a shell, with placeholders: `{port}` for ext-proc, `{health}` and `{metrics}`
            for two more free ports, `{ports}` of the servers with commas, `{endpoints}` for a file that lists them,
            `{config}` for its configuration.
        config: an EndpointPickerConfig; the picker gets a copy that finds the servers in the file.
        servers: addresses of the model servers.
        folder: for these files and its log.
    """

    def __init__(self, command: str, *, config: Path, servers: Sequence[Address], folder: Path) -> None:
        self._arguments = picker_arguments(command)
        self._config, self._servers, self._folder = config, servers, folder
        self._held = [HeldPort(HOST) for _ in range(3)]
        self._process = ChildProcess("the picker", log=folder / "picker.log", in_group=True)

    @property
    def address(self) -> Address:
        """Address of its ext-proc service."""
        return HOST, self._held[0].number

    async def start(self) -> None:
        """Start it, and return once it accepts connections.

        Raises:
            DemoError: it ended, or was not ready in time; with the last lines of its output.
        """
        await self._process.start(
            self._filled(), lambda: _accepts(self.address), f"listened on {self.address[1]}"
        )

    def check(self) -> None:
        """Check that it still runs.

        Raises:
            DemoError: it has ended.
        """
        self._process.check()

    async def stop(self) -> None:
        """End it and all processes that it started, by force if necessary."""
        await self._process.stop()

    def tail(self) -> str:
        """Return the last lines of its output."""
        return self._process.tail()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _filled(self) -> list[str]:
        endpoints, config = self._folder / "endpoints.yaml", self._folder / "picker.yaml"
        listed = [
            {"name": f"server-{number}", "namespace": "default", "address": host, "port": str(port)}
            for number, (host, port) in enumerate(self._servers)
        ]
        endpoints.write_text(yaml.safe_dump({"endpoints": listed}))
        config.write_text(with_file_discovery(self._config.read_text(), endpoints))
        ports = [str(port.number) for port in self._held]
        values = (*ports, ",".join(str(port) for _, port in self._servers), str(endpoints), str(config))
        return [_replaced(argument, values) for argument in self._arguments]


def picker_arguments(command: str) -> list[str]:
    """Split a command line.

    Raises:
        CompareError: it is empty, has an open quote, or no `{port}`.
    """
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise CompareError(f"--picker: {command!r} cannot be split: {error}") from error
    if not any("{port}" in argument for argument in arguments):
        raise CompareError(
            f"--picker: {command!r} has no {{port}}, the place for the port of its ext-proc service; "
            f"all places: {' '.join(PLACEHOLDERS)}"
        )
    return arguments


def check_executable(command: str) -> None:
    """Check that the program of a command line can be run.

    Raises:
        CompareError: it cannot, or see `picker_arguments`.
    """
    program = picker_arguments(command)[0]
    if shutil.which(program) is None:
        raise CompareError(f"--picker: {program!r} is no program that can be run; give its path")


def with_file_discovery(config: str, endpoints: Path) -> str:
    """Return an EndpointPickerConfig that finds its endpoints in a file, whatever it named before."""
    document: dict[str, Any] = yaml.safe_load(config)
    name = "file-discovery"
    others = [each for each in document.get("plugins") or () if each.get("type") != name]
    plugin = {"type": name, "parameters": {"path": str(endpoints), "watchFile": False}}
    layer: dict[str, Any] = {**(document.get("dataLayer") or {}), "discovery": {"pluginRef": name}}
    return yaml.safe_dump(
        document | {"plugins": [*others, plugin], "dataLayer": layer}, sort_keys=False, allow_unicode=True
    )


def _replaced(argument: str, values: Sequence[str]) -> str:
    for name, value in zip(PLACEHOLDERS, values, strict=True):
        argument = argument.replace(name, value)
    return argument


async def _accepts(address: Address) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address)
    except ConnectionError:
        return False
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return True
