"""A child process that is running once it is ready, with the last lines of its output for errors."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .errors import DemoError

_START_LIMIT_S, _STOP_LIMIT_S, _POLL_S = 60.0, 5.0, 0.05
_LOG_LINES = 15


class ChildProcess:
    """One child process, from `start` to `stop`.

    Args:
        name: how errors name it.
        log: file for its output.
        in_group: whether it gets a session of its own, so that what it started ends with it. Ctrl-C then reaches it only
            through `stop`; without, also from the terminal.
    """

    def __init__(self, name: str, *, log: Path, in_group: bool = False) -> None:
        self._name, self._log, self._in_group = name, log, in_group
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id, while it runs."""
        if self._process is None:
            raise DemoError(f"{self._name} does not run")
        return self._process.pid

    @property
    def output(self) -> str:
        """All of its output, empty before `start`."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    async def start(self, arguments: Sequence[str], ready: Callable[[], Awaitable[bool]], what: str) -> None:
        """Start it, and return once it is ready.

        Args:
            arguments: program and its arguments.
            ready: called again and again.
            what: what it has done when it is ready, such as `listened on 9002`, for errors.

        Raises:
            DemoError: it ended, or was not ready in time; with the last lines of its output.
        """
        try:
            with self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=self._in_group,
                )
            async with asyncio.timeout(_START_LIMIT_S):
                while not await ready():
                    self.check()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            await self.stop()
            raise DemoError(
                f"{self._name} had not {what} after {_START_LIMIT_S:.0f} s:\n{self.tail()}"
            ) from error
        except BaseException:
            await self.stop()
            raise

    def check(self) -> None:
        """Check that it still runs.

        Raises:
            DemoError: it has ended.
        """
        if self._process is not None and self._process.returncode is not None:
            raise DemoError(f"{self._name} ended with status {self._process.returncode}:\n{self.tail()}")

    async def stop(self) -> None:
        """End it, with all that it started if it has a group of its own, by force if necessary."""
        process, self._process = self._process, None
        if process is None or (process.returncode is not None and not self._in_group):
            return
        self._signal(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            pass
        finally:
            self._signal(process, signal.SIGKILL)
            await process.wait()

    def tail(self) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.output.splitlines()[-_LOG_LINES:])

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._in_group:
                os.killpg(process.pid, number)
            elif process.returncode is None:
                process.send_signal(number)
