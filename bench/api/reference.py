"""The reference picker, run without a cluster beside kvatlas.

It is no part of this repository. The environment variable `KVATLAS_REFERENCE` names a folder with `get.sh`, which prints the
folder of the binary `epp`, and `picker.py`, which writes its configuration for a list of ports and becomes the picker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from kvatlas.sim.held_port import HeldPort

from .extproc_load import HOST, SERVER_CPU, Running

VARIABLE = "KVATLAS_REFERENCE"
_START_LIMIT_S = 60.0
_FIRST_SERVER_PORT = 20_001
"""Nothing has to listen at the addresses of its endpoints."""


def folder() -> Path | None:
    """Return the folder that the environment names, None if it names none."""
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


@asynccontextmanager
async def reference(where: Path, n_endpoints: int) -> AsyncGenerator[Running]:
    """Run the reference picker on one core, with the scorers and weights of kvatlas's default profile.

    It scrapes once an hour, since here nothing but requests is measured.

    Raises:
        SystemExit: it ended.
        TimeoutError: it does not listen after a minute.
    """
    binaries = await _output(where / "get.sh")
    ports = _three_ports()
    servers = ",".join(str(_FIRST_SERVER_PORT + number) for number in range(n_endpoints))
    process = await asyncio.create_subprocess_exec(
        *("taskset", "--cpu-list", str(SERVER_CPU), sys.executable, where / "picker.py"),
        *(
            "--port",
            str(ports[0].number),
            "--ports",
            servers,
            "--config",
            "tiered",
            "--interval",
            "1h",
            "--verbose",
            "0",
        ),
        env=os.environ | {"REFERENCE_EPP": f"{binaries}/epp"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            await _until_listening(process, ports[0].number)
        yield Running(ports[0].number, process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _three_ports() -> list[HeldPort]:
    """Return a free port and the two behind it, which are for health and metrics."""
    while True:
        first = HeldPort(HOST)
        with contextlib.suppress(OSError):
            return [first, *(HeldPort(HOST, first.number + more) for more in (1, 2))]


async def _output(program: Path) -> str:
    process = await asyncio.create_subprocess_exec(program, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode().strip()


async def _until_listening(process: asyncio.subprocess.Process, port: int) -> None:
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise SystemExit(f"the reference picker ended with status {process.returncode}")
