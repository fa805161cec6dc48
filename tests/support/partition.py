"""A network between one replica and the others that a test can cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from support.replica_sections import Sections, on_server

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Partition:
    """Connections between both sides. While they are cut nothing passes, and neither side is told, as if packets were lost.

    What is under way then waits, as TCP would send it again.
    """

    def __init__(self) -> None:
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._is_whole.clear()

    def heal(self) -> None:
        self._is_whole.set()

    async def join_paths(self, path: Path, target: Path) -> None:
        """Pass connections to the Unix socket `path` on to `target`."""

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._is_whole.wait()
            try:
                self._pass((reader, writer), await asyncio.open_unix_connection(target))
            except OSError:  # it does not listen yet
                writer.close()

        self._servers.append(await asyncio.start_unix_server(connect, path))

    async def join_port(self, target: int) -> int:
        """Pass connections to the returned port on to another one."""

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._is_whole.wait()
            self._pass((reader, writer), await asyncio.open_connection("127.0.0.1", target))

        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _pass(self, here: Streams, there: Streams) -> None:
        for source, target in ((here[0], there[1]), (there[0], here[1])):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._is_whole.wait()
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def parted_mesh(folder: Path, apart: str, *others: str) -> AsyncGenerator[tuple[Sections, Partition]]:
    """Yield sections of replicas that meet on Unix sockets, and the partition of one of them from the others."""
    paths = {name: folder / f"{name}.mesh" for name in (apart, *others)}
    across = {name: folder / f"{name}.cut" for name in paths}
    async with Partition() as partition:
        for name, path in paths.items():
            await partition.join_paths(across[name], path)

        def section(name: str) -> dict[str, object]:
            met = {each: across if apart in (name, each) else paths for each in paths if each != name}
            listed = [f"ipc://{place[each]}" for each, place in met.items()]
            mesh = {"listen": f"ipc://{paths[name]}", "discover": {"list": listed}}
            return {"transport": "mesh", "name": name, "mesh": mesh}

        yield {name: section(name) for name in paths}, partition


@asynccontextmanager
async def parted_server(port: int, apart: str, *others: str) -> AsyncGenerator[tuple[Sections, Partition]]:
    """Yield sections of replicas that meet on a server, and the partition of one of them from it."""
    async with Partition() as partition:
        across = await partition.join_port(port)
        yield (
            on_server(f"127.0.0.1:{across}", apart) | on_server(f"127.0.0.1:{port}", *others),
            partition,
        )
