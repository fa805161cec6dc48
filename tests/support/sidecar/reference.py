"""The reference sidecar itself, if the environment variable KVATLAS_REFERENCE names the folder of its `get.sh`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from support.waiting import until

_VARIABLE = "KVATLAS_REFERENCE"
_HOST = "127.0.0.1"


NEEDS = "needs the environment variable KVATLAS_REFERENCE, which names the folder of the reference's get.sh"
"""Why a test is skipped without it."""


def is_there() -> bool:
    """Return whether the environment names it."""
    return _VARIABLE in os.environ


async def binary() -> Path:
    """Return the path of the sidecar, which `get.sh` unpacks."""
    script = Path(os.environ[_VARIABLE]) / "get.sh"
    process = await asyncio.create_subprocess_exec(script, stdout=asyncio.subprocess.PIPE)
    return Path((await process.communicate())[0].decode().strip()) / "sidecar"


@contextlib.asynccontextmanager
async def reference_sidecar(
    flags: Sequence[str], environment: Mapping[str, str], port: int
) -> AsyncGenerator[None]:
    """Run it with flags, of which one is `--port={port}`, and more environment variables; it listens for all its ranks."""
    sizes = [int(flag.partition("=")[2]) for flag in flags if flag.startswith("--data-parallel-size=")]
    last_port = port + (sizes[0] if sizes else 1) - 1
    process = await asyncio.create_subprocess_exec(
        await binary(),
        *flags,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def listens() -> bool:
        assert process.returncode is None, f"the sidecar ended with status {process.returncode}"
        try:
            _, writer = await asyncio.open_connection(_HOST, last_port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(listens, what="the reference sidecar on its port")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
