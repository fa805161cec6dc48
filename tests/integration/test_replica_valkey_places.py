"""Which server of a set or a cluster replicas use, if those that are asked differ, or name an address of no use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import pytest

from support.cable import Cable
from support.valkey_nodes import connected, nodes, until_heard
from support.valkey_process import Server, free_port, one, running
from support.waiting import until


def sentinel(folder: Path, port: int) -> Server:
    """Return a Sentinel that knows no other one, and a primary on a port."""
    found = Server(folder, free_port(), is_sentinel=True)
    folder.mkdir(parents=True)
    (folder / "server.conf").write_text(f"sentinel monitor kv 127.0.0.1 {port} 1\n")
    return found


class Line:
    """A port whose connections go on to a server, and are counted."""

    def __init__(self, address: str) -> None:
        self.cable, self.n_connections = Cable(address), 0
        self._cables = [self.cable]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in self._cables:
            await each.close()

    def lead_to(self, address: str) -> None:
        """Have new connections go on to another server, as a Service does; open ones stay where they are."""
        self.cable = Cable(address)
        self._cables.append(self.cable)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        await self.cable.pass_on(reader, writer)


async def test_next_sentinel_is_asked_when_the_first_one_names_a_primary_that_is_gone(tmp_path: Path) -> None:
    async with one(tmp_path) as server:
        stale, good = sentinel(tmp_path / "stale", free_port()), sentinel(tmp_path / "good", server.port)
        config = {"sentinel": {"master": "kv", "addresses": [stale.address, good.address]}}
        async with running(stale, good), nodes("a", "b", **config) as (a, b):
            await connected(a, b)
            await until_heard(a, b, b"there")


async def test_login_that_a_sentinel_refuses_names_the_keys_of_sentinels(tmp_path: Path) -> None:
    right = "of Sentinels"
    asked = Server(tmp_path / "sentinel", free_port(), is_sentinel=True, password=right)
    async with running(asked), nodes("a", sentinel={"master": "kv", "addresses": [asked.address]}) as (a,):
        await until(lambda: bool(a.transport.traffic.problem), what="the problem")
        assert "in its sentinel" in a.transport.traffic.problem


async def test_node_without_a_name_is_said_and_used_once_it_has_one(tmp_path: Path) -> None:
    named_only = ("--cluster-preferred-endpoint-type", "hostname", "--cluster-port", str(free_port()))
    server = Server(tmp_path / "node", free_port(), ("--cluster-enabled", "yes", *named_only))
    async with running(server):
        await server.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        async with nodes("a", cluster=[server.address]) as (a,):
            await until(lambda: "found host '?'" in a.transport.traffic.problem, what="the problem")
            assert a.transport.traffic.failures["server"] > 0
            await server.call("CONFIG", "SET", "cluster-announce-hostname", "localhost")
            await connected(a)


async def test_sentinels_that_are_gone_are_said_while_the_primary_carries_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas.app.replicas.valkey.LOCATE_S", 0.01)
    async with one(tmp_path) as server:
        asked = sentinel(tmp_path / "sentinel", server.port)
        async with (
            running(asked),
            nodes("a", "b", sentinel={"master": "kv", "addresses": [asked.address]}) as (a, b),
        ):
            await connected(a, b)
            await asked.kill()
            await until(lambda: "no Sentinel names" in a.transport.traffic.problem, what="the problem")
            assert a.transport.traffic.failures["unreached"] > 0
            await until_heard(a, b, b"there")
            assert a.transport.traffic.connections == 1
            await asked.start()
            await until(lambda: not a.transport.traffic.problem, what="no problem")
            assert any("no Sentinel names" in each for each in caplog.messages)


async def test_sentinel_is_asked_again_over_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("valkey", "valkey_server"):
        monkeypatch.setattr(f"kvatlas.app.replicas.{module}.LOCATE_S", 0.01)
    async with one(tmp_path) as server:
        asked = sentinel(tmp_path / "sentinel", server.port)
        async with (
            running(asked),
            Line(asked.address) as line,
            nodes("a", sentinel={"master": "kv", "addresses": [line.address]}) as (a,),
        ):
            await connected(a)
            before = line.cable.n_bytes
            await until(lambda: line.cable.n_bytes > 4 * before, what="questions")
            assert line.n_connections <= 2


async def test_read_only_replica_is_said_and_used_once_it_is_a_primary(tmp_path: Path) -> None:
    async with one(tmp_path) as primary:
        replica = Server(tmp_path / "replica", free_port(), ("--replicaof", "127.0.0.1", str(primary.port)))
        async with running(replica), nodes("a", "b", address=replica.address) as (a, b):
            await until(lambda: "is a read-only replica" in a.transport.traffic.problem, what="the problem")
            assert "replicas.valkey.address" in a.transport.traffic.problem
            assert a.transport.traffic.failures["server"] > 0
            await replica.call("REPLICAOF", "NO", "ONE")
            await connected(a, b)
            await until_heard(a, b, b"there")


async def test_primary_that_becomes_a_replica_is_left_for_the_next_one_at_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas.app.replicas.valkey.LOCATE_S", 0.01)
    async with one(tmp_path) as first:
        second = Server(tmp_path / "second", free_port(), ("--replicaof", "127.0.0.1", str(first.port)))
        async with running(second), Line(first.address) as line, nodes("a", address=line.address) as (a,):
            await connected(a)
            line.lead_to(second.address)
            await second.call("REPLICAOF", "NO", "ONE")
            await first.call("REPLICAOF", "127.0.0.1", str(second.port))
            async with nodes("b", address=line.address) as (b,):
                await connected(b)
                await until_heard(a, b, b"there")
            assert a.transport.traffic.failures["server"] > 0


async def test_sentinel_that_names_a_demoted_primary_is_passed_over(tmp_path: Path) -> None:
    async with one(tmp_path) as primary:
        demoted = Server(tmp_path / "demoted", free_port(), ("--replicaof", "127.0.0.1", str(primary.port)))
        stale, good = sentinel(tmp_path / "stale", demoted.port), sentinel(tmp_path / "good", primary.port)
        config = {"sentinel": {"master": "kv", "addresses": [stale.address, good.address]}}
        async with running(demoted, stale, good), nodes("a", "b", **config) as (a, b):
            await connected(a, b)
            assert await demoted.call("PUBSUB", "SHARDCHANNELS") == []
            await until_heard(a, b, b"there")


@pytest.mark.parametrize("reply", [b"*1\r\n:5\r\n", b"*1\r\n*2\r\n$1\r\nx\r\n:1\r\n", b"*1\r\n*0\r\n"])
async def test_slots_that_are_none_are_said_and_another_server_is_asked(tmp_path: Path, reply: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(reply if b"SLOTS" in data else b"+OK\r\n" * data.count(b"CLIENT"))
        writer.close()

    good = Server(
        tmp_path / "node", free_port(), ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    )
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as odd:
        address = f"127.0.0.1:{odd.sockets[0].getsockname()[1]}"
        async with nodes("a", cluster=[address]) as (a,):
            await until(lambda: "describes its slots as" in a.transport.traffic.problem, what="the problem")
        async with running(good), nodes("a", cluster=[address, good.address]) as (a,):
            await good.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await connected(a)


@pytest.mark.parametrize("reply", [b"-MOVED elsewhere\r\n", b":many\r\n", b"*1\r\n" * 3000 + b":1\r\n"])
@pytest.mark.parametrize("asked", [b"CLIENT", b"SSUBSCRIBE"])
async def test_bytes_that_are_no_reply_are_said_and_the_server_is_tried_again(
    asked: bytes, reply: bytes
) -> None:
    n_connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_connections
        n_connections += 1
        while data := await reader.read(4096):
            writer.write(reply if asked in data else b"+OK\r\n" * data.count(b"*"))
        writer.close()

    odd = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with odd, nodes("a", address=f"127.0.0.1:{odd.sockets[0].getsockname()[1]}") as (a,):
        await until(lambda: "is no reply" in a.transport.traffic.problem, what="the problem")
        n_before = n_connections
        await until(lambda: n_connections > n_before, what="another connection")
