"""`kvatlas serve` as a child process."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from .child_process import ChildProcess
from .envoy import Address

_LISTENS = re.compile(r"(\w+) listens on (.+):(\d+)\n")


class KVAtlasProcess:
    """One kvatlas, running from `start` to `stop`, or inside `async with`.

    Args:
        config: its configuration file, which must turn on REST.
        log: file for its output.
        picker_config: an EndpointPickerConfig beside it.
    """

    def __init__(self, config: Path, *, log: Path, picker_config: Path | None = None) -> None:
        self._files = ["--config", str(config)]
        if picker_config is not None:
            self._files += ["--config-file", str(picker_config)]
        self._addresses: dict[str, Address] = {}
        self._process = ChildProcess("kvatlas", log=log)

    @property
    def pid(self) -> int:
        """Process id, while it runs."""
        return self._process.pid

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Listening addresses by configuration key, `extProc` and so on, as its log names them; empty before `start`."""
        return self._addresses

    @property
    def rest_url(self) -> str:
        """`http://HOST:PORT` of the REST listener; only after `start`."""
        return "http://{}:{}".format(*self._addresses["rest"])

    async def start(self) -> None:
        """Start it and return once it is ready.

        Raises:
            DemoError: it ended, or was not ready in time; with the last lines of its log.
        """
        self._addresses = {}
        serve = [sys.executable, "-m", "kvatlas.app.cli.main", "serve", *self._files]
        async with aiohttp.ClientSession() as session:
            await self._process.start(serve, lambda: self._ready(session), "become ready")

    def check(self) -> None:
        """Check that it still runs.

        Raises:
            DemoError: it has ended.
        """
        self._process.check()

    async def stop(self) -> None:
        """End it, by force if necessary."""
        await self._process.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        self._addresses = {
            name: (host, int(port)) for name, host, port in _LISTENS.findall(self._process.output)
        }
        if "rest" not in self._addresses:
            return False
        try:
            async with session.get(f"{self.rest_url}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False
