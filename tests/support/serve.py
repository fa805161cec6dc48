"""A real `kvatlas serve` process for integration tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from kvatlas.configs.listeners import DRAIN_S
from support.forks import Fork, fork
from support.waiting import PATIENCE_S, until

ANY_PORTS = dict.fromkeys(("extProc", "health", "rest", "metrics"), "127.0.0.1:0")
ENDS_AT_ONCE = {"drainNotice": "1ms"}
"""For servers whose gateways need not notice that they end: all that name no other time."""
GIVES_NOTICE = {"drainNotice": "2500ms"}
"""For servers that end while gateways send them requests; the default of kvatlas."""
_LISTENS = re.compile(r"(\w+) listens on 127\.0\.0\.1:(\d+)")


@dataclass
class Served:
    """A running process: its ports by listener name, a client session, and its log."""

    ports: dict[str, int]
    session: aiohttp.ClientSession
    process: asyncio.subprocess.Process | Fork
    log: list[str]

    async def get(self, path: str) -> Any:
        async with self.session.get(self._url(path)) as answer:
            return await answer.json()

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        async with self.session.post(self._url(path), json=body) as answer:
            return await answer.json()

    async def put(self, path: str, body: dict[str, Any]) -> Any:
        async with self.session.put(self._url(path), json=body) as answer:
            return await answer.json()

    async def until_generation(self, generation: int) -> None:
        """Wait until a configuration is in force."""
        await self.until_metric(f"kvatlas_config_generation {generation:.1f}")

    async def until_logged(self, text: str) -> None:
        """Wait until a line of the log contains `text`."""
        await until(lambda: any(text in line for line in self.log), what=f"{text!r} in the log")

    async def status(self, path: str) -> int:
        async with self.session.get(self._url(path)) as answer:
            return answer.status

    async def metrics(self) -> str:
        async with self.session.get(self._url("/metrics")) as answer:
            return await answer.text()

    def resident_mib(self) -> float:
        """Return the memory that the process has."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    async def until_applied(self, endpoint: str, seq: int) -> None:
        """Wait until the endpoint's first rank has applied batch `seq`, and a replay that brought it has ended."""

        async def has_it() -> bool:
            publisher = (await self.get(f"/v1/endpoints/{endpoint}"))["publishers"][0]
            return bool(publisher["lastSeq"] == seq and publisher["trust"] != "replaying")

        await until(has_it, what=f"batch {seq} of {endpoint} in the index")

    async def until_metric(self, line: str) -> None:
        """Wait until `/metrics` contains a line."""

        async def has_it() -> bool:
            return line in (await self.metrics()).splitlines()

        await until(has_it, what=line)

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.ports['rest']}{path}"


@contextlib.asynccontextmanager
async def serving(
    config: dict[str, Any],
    folder: Path,
    *flags: str,
    ready: bool = True,
    end: int = signal.SIGTERM,
    killed_by: int | None = None,
    fails: bool = False,
    descriptors: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[Served]:
    """Run `kvatlas serve` with `config` on free ports; signal `end` stops it. `environment` adds variables.

    With `descriptors`, it may open only so many. It must end with status 0, or 1 if it `fails`, except after SIGKILL or if signal `killed_by` killed it meanwhile.
    """
    file = folder / "kvatlas.yaml"
    file.write_bytes(config_text(config))
    arguments = ("serve", "--config", str(file), *flags)
    if descriptors is None and environment is None:
        process: asyncio.subprocess.Process | Fork = await fork(*arguments)
    else:
        # a shell sets the limit: Python code between fork and exec is not safe in a process with threads
        limiting = (
            () if descriptors is None else ("sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptors))
        )
        process = await asyncio.create_subprocess_exec(
            *(*limiting, sys.executable, "-m", "kvatlas.app.cli.main", *arguments),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
    log: list[str] = []
    ports: dict[str, int] = {}
    reader = asyncio.create_task(_read(process, log, ports))
    try:
        async with aiohttp.ClientSession() as session:
            await until(_listening(process, ports, log), what="kvatlas serve on its ports")
            served = Served(ports, session, process, log)
            if ready:
                await until(lambda: _is_ok(served), what="readiness")
            yield served
    finally:
        if process.returncode is None:
            process.send_signal(end)
        try:
            status = await asyncio.wait_for(process.wait(), timeout=DRAIN_S + PATIENCE_S)
        except TimeoutError:
            process.kill()  # neither it nor its pipes outlast the test
            await process.wait()
            raise
        finally:
            await reader
    killed_by = end if end == signal.SIGKILL else killed_by
    assert status == (int(fails) if killed_by is None else -killed_by), "\n".join(log)


def config_text(config: dict[str, Any]) -> bytes:
    """Return the configuration file that `serving` starts with; unless it says otherwise, the server ends at once."""
    server = ENDS_AT_ONCE | config.get("server", ANY_PORTS)
    return msgspec.yaml.encode(
        {"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig", **config, "server": server}
    )


async def _is_ok(served: Served) -> bool:
    return await served.status("/readyz") == 200


def _listening(
    process: asyncio.subprocess.Process | Fork, ports: dict[str, int], log: list[str]
) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        assert process.returncode is None, f"kvatlas serve ended with {process.returncode}: " + "\n".join(log)
        return ANY_PORTS.keys() <= ports.keys()

    return check


async def _read(process: asyncio.subprocess.Process | Fork, log: list[str], ports: dict[str, int]) -> None:
    assert process.stderr is not None
    async for raw in process.stderr:
        line = raw.decode().rstrip()
        log.append(line)
        if found := _LISTENS.search(line):
            ports[found[1]] = int(found[2])
