"""`kvatlas serve` as a child process."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from .envoy import Address
from .errors import DemoError

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 5.0
_POLL_S = 0.05
_LOG_LINES = 15
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
        self._log = log
        self._addresses: dict[str, Address] = {}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id, while it runs."""
        if self._process is None:
            raise DemoError("kvatlas does not run")
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
        try:
            with self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "kvatlas.app.cli.main", "serve", *self._files),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._addresses = {}
            async with asyncio.timeout(_START_LIMIT_S), aiohttp.ClientSession() as session:
                while not await self._ready(session):
                    self.check()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            await self.stop()
            raise DemoError(f"kvatlas was not ready after {_START_LIMIT_S:.0f} s:\n{self._tail()}") from error
        except BaseException:
            await self.stop()
            raise

    def check(self) -> None:
        """Check that it still runs.

        Raises:
            DemoError: it has ended.
        """
        if self._process is not None and self._process.returncode is not None:
            raise DemoError(f"kvatlas ended with status {self._process.returncode}:\n{self._tail()}")

    async def stop(self) -> None:
        """End it, by force if necessary."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        self._addresses = {
            name: (host, int(port))
            for name, host, port in _LISTENS.findall(self._log.read_text(errors="replace"))
        }
        if "rest" not in self._addresses:
            return False
        try:
            async with session.get(f"{self.rest_url}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])
