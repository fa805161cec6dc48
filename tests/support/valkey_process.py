"""Real Valkey or Redis servers: one, a set with Sentinels, a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from support.certificates import Authority
from support.programs import find_program
from support.waiting import until

N_SLOTS = 16384


def server_program() -> str:
    """Return the path of a server; skip the test if there is none."""
    program = find_program("valkey-server", "redis-server")
    if program is None:
        pytest.skip("no valkey-server or redis-server: make test-programs")
    return program


def free_port() -> int:
    """Return a port that is free now, for a server that takes no port 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class ServerTls:
    """TLS of a server, and of the connections to it: clients need a certificate of the same authority.

    Attributes:
        authority: of both sides.
        host: name or address in the server's certificate.
    """

    authority: Authority
    host: str

    def options(self, port: int) -> tuple[str, ...]:
        """Return the server's options, which listens for TLS alone."""
        certificate, key = map(str, self.authority.certify(self.host))
        files = ("--tls-cert-file", certificate, "--tls-key-file", key)
        return (
            "--port",
            "0",
            "--tls-port",
            str(port),
            *files,
            "--tls-ca-cert-file",
            str(self.authority.file),
        )

    def client(self) -> dict[str, Any]:
        """Return the section `tls` of a client."""
        certificate, key = map(str, self.authority.certify("user@kvatlas"))
        return {
            "enabled": True,
            "caFile": str(self.authority.file),
            "certFile": certificate,
            "keyFile": key,
        }

    def call(self) -> dict[str, Any]:
        """Return arguments of a plain client of the library."""
        files = self.client()
        return {
            "ssl": True,
            "ssl_ca_certs": files["caFile"],
            "ssl_certfile": files["certFile"],
            "ssl_keyfile": files["keyFile"],
            "ssl_check_hostname": False,
        }


@dataclass
class Server:
    """A server process, which can be killed, frozen and started again."""

    folder: Path
    port: int
    options: Sequence[str] = ()
    is_sentinel: bool = False
    password: str | None = None
    tls: ServerTls | None = None
    process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        program = server_program()
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.conf"
        if not file.exists():
            file.write_text("")
        self.process = await asyncio.create_subprocess_exec(
            program,
            str(file),
            *(("--port", str(self.port)) if self.tls is None else self.tls.options(self.port)),
            *("--bind", "127.0.0.1", "--dir", str(self.folder)),
            *(() if self.password is None else ("--requirepass", self.password)),
            *(("--sentinel",) if self.is_sentinel else ("--save", "", "--appendonly", "no")),
            *(() if self.is_sentinel else ("--repl-diskless-sync-delay", "0")),
            *self.options,
            stdout=asyncio.subprocess.DEVNULL,
            env={**os.environ, "LD_LIBRARY_PATH": str(Path(program).parent)},
        )
        await until(self._answers, what=f"a server on port {self.port}")

    async def call(self, *command: object) -> Any:
        """Send a command as the default user and return its reply."""
        tls = {} if self.tls is None else self.tls.call()
        async with Redis(port=self.port, socket_timeout=5, password=self.password, **tls) as client:
            return await cast("Any", client).execute_command(*command)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    async def is_synced(self) -> bool:
        """Return whether this replica of another server has all that the other has."""
        found = await self.call("INFO", "replication")
        return "up" in (
            found["master_link_status"] if isinstance(found, dict) and "master_link_status" in found else ""
        )

    async def _end(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()

    async def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.returncode is None, "the server has ended"
        try:
            await self.call("PING")
        except RedisError:
            return False
        return True


@asynccontextmanager
async def running(*servers: Server) -> AsyncGenerator[None]:
    """Run servers; all end with the block, however they are then."""
    async with AsyncExitStack() as stack:
        for each in servers:
            stack.push_async_callback(each.kill)
            await each.start()
        yield


@asynccontextmanager
async def one(
    folder: Path, *, password: str | None = None, tls: ServerTls | None = None
) -> AsyncGenerator[Server]:
    """Run one server."""
    server = Server(folder / "server", free_port(), password=password, tls=tls)
    async with running(server):
        yield server


@asynccontextmanager
async def cluster(folder: Path) -> AsyncGenerator[list[Server]]:
    """Run a cluster of three shards with a replica each; the first three are the primaries."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-config-file", "nodes")
    servers = [
        Server(folder / f"node-{n}", free_port(), (*options, "--cluster-port", str(free_port())))
        for n in range(6)
    ]
    async with running(*servers):
        ids = [(await each.call("CLUSTER", "MYID")).decode() for each in servers]
        for number, each in enumerate(servers[:3]):
            first, last = number * N_SLOTS // 3, (number + 1) * N_SLOTS // 3 - 1
            await each.call("CLUSTER", "ADDSLOTSRANGE", first, last)
        await _until_all_have(servers, "cluster_known_nodes:6", before=partial(_meet, servers))
        for number, each in enumerate(servers[3:]):
            await each.call("CLUSTER", "REPLICATE", ids[number])
        await _until_all_have(servers, "cluster_state:ok")
        for each in servers[3:]:
            await until(each.is_synced, what="a replica that has synced")
        yield servers


async def _meet(servers: Sequence[Server]) -> None:
    """Let the first server meet those that it does not know; one that has not answered within a second is forgotten."""
    known: bytes = await servers[0].call("CLUSTER", "NODES")
    for each in servers[1:]:
        if f":{each.port}@".encode() not in known:
            await servers[0].call("CLUSTER", "MEET", "127.0.0.1", each.port, each.options[-1])


async def _until_all_have(
    servers: Sequence[Server], line: str, *, before: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Wait until each server says so of its cluster; `before` is done before each look."""

    async def have() -> bool:
        if before is not None:
            await before()
        found: list[bytes] = [await each.call("CLUSTER", "INFO") for each in servers]
        return all(f"{line}\r\n".encode() in each for each in found)

    await until(have, what=line)


@asynccontextmanager
async def sentinel_set(folder: Path) -> AsyncGenerator[tuple[list[Server], list[Server]]]:
    """Run a primary with a replica, named `kv`, and three Sentinels; yield (servers, Sentinels)."""
    primary = Server(folder / "primary", free_port())
    replica = Server(folder / "replica", free_port(), ("--replicaof", "127.0.0.1", str(primary.port)))
    sentinels = [Server(folder / f"sentinel-{n}", free_port(), is_sentinel=True) for n in range(3)]
    for each in sentinels:
        each.folder.mkdir(parents=True)
        (each.folder / "server.conf").write_text(
            f"sentinel monitor kv 127.0.0.1 {primary.port} 2\n"
            "sentinel down-after-milliseconds kv 1000\nsentinel failover-timeout kv 5000\n"
        )
    async with running(primary, replica, *sentinels):
        await until(replica.is_synced, what="a replica that has synced")
        for each in sentinels:

            async def knows(each: Server = each) -> bool:
                master = await each.call("SENTINEL", "MASTER", "kv")
                text = str(master)
                return (
                    "num-other-sentinels" in text and len(await each.call("SENTINEL", "REPLICAS", "kv")) == 1
                )

            await until(knows, what="Sentinels that know the replica")
        yield [primary, replica], sentinels
