"""Publish and subscribe between replicas on real servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvatlas.app.replicas.valkey_server import TIMEOUT_S
from support.valkey_nodes import connected, nodes, until_heard
from support.valkey_process import Server, cluster, free_port, one, sentinel_set
from support.waiting import until


async def test_messages_reach_all_or_the_one_that_is_named(tmp_path: Path) -> None:
    async with one(tmp_path) as server, nodes("a", "b", "c", address=server.address) as (a, b, c):
        await connected(a, b, c)
        a.says(b"all")
        a.says(b"one", to="c")
        await b.until_received(b"all")
        await c.until_received(b"one")
        assert (b.received, c.received) == ([b"all"], [b"all", b"one"])
        assert (a.transport.traffic.sent, a.transport.traffic.sent_bytes) == (2, 6)
        assert await server.call("DBSIZE") == 0


async def test_user_has_rights_to_its_channels_alone_and_the_password_may_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    async with one(tmp_path) as server:
        rights = ("on", "resetchannels", "&kvatlas:*", "-@all", "+ssubscribe", "+spublish", "+ping")
        await server.call("ACL", "SETUSER", "kvatlas", ">first", *rights)
        config = {"address": server.address, "username": "kvatlas", "passwordFile": str(password)}
        async with nodes("a", "b", **config) as (a, b):
            await connected(a, b)
            await until_heard(a, b, b"first")
            assert not [each for each in caplog.records if each.levelname == "WARNING"]
            await server.call("ACL", "SETUSER", "kvatlas", "resetpass", ">second", *rights)
            password.write_text("second\n")
            await server.call("CLIENT", "KILL", "USER", "kvatlas")
            await until_heard(a, b, b"second")


async def test_missing_right_to_publish_is_said_once_and_taken_up_when_it_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "password"
    password.write_text("first")
    async with one(tmp_path) as server:
        await server.call("ACL", "SETUSER", "kvatlas", "on", ">first", "&*", "-@all", "+ssubscribe")
        config = {"address": server.address, "username": "kvatlas", "passwordFile": str(password)}
        async with nodes("a", **config) as (a,):
            await until(lambda: a.transport.traffic.failures["login"] > 2, what="several failures")
            assert (a.transport.traffic.connections, a.transport.is_connected) == (0, False)
            assert "lacks a right" in a.transport.traffic.problem
            assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
            await server.call("ACL", "SETUSER", "kvatlas", "+spublish")
            await connected(a)


async def test_wrong_password_is_said_and_the_right_one_taken_up(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong")
    right = "right"
    async with (
        one(tmp_path, password=right) as server,
        nodes("a", address=server.address, passwordFile=str(password)) as (a,),
    ):
        await until(lambda: "invalid username-password" in a.transport.traffic.problem, what="the problem")
        a.says(b"lost")
        assert a.transport.traffic.dropped["not_connected"] == 1
        password.write_text(right)
        await connected(a)
        assert a.transport.traffic.problem == ""


async def test_no_server_is_said(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with nodes("a", address=address) as (a,):
        await until(lambda: bool(a.transport.traffic.problem), what="the problem")
        assert a.transport.traffic.problem.startswith(f"cannot connect to the server at {address}: Conn")
        assert a.transport.traffic.failures["unreached"] > 0


async def test_server_that_is_gone_and_comes_back_empty_is_used_again(tmp_path: Path) -> None:
    async with one(tmp_path) as server, nodes("a", "b", address=server.address) as (a, b):
        await connected(a, b)
        await server.kill()
        await until(lambda: bool(a.transport.traffic.problem), what="the problem")
        await server.start()
        await until_heard(a, b, b"again")
        assert b.transport.traffic.connections == 2


async def test_server_that_breaks_each_connection_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with one(tmp_path) as server, nodes("a", address=server.address) as (a,):
        for n_connections in (1, 2, 3, 4):
            await until(lambda n=n_connections: a.transport.traffic.connections == n, what="a connection")  # type: ignore[misc]
            await server.call("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: a.transport.traffic.failures.total() == 4, what="a failure")
        assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
        assert len([each for each in caplog.messages if "connected to the server" in each]) <= 1


async def test_frozen_server_is_noticed_and_what_waits_is_bounded(tmp_path: Path) -> None:
    async with one(tmp_path) as server, nodes("a", "b", address=server.address) as (a, b):
        await connected(a, b)
        server.freeze()
        for number in range(500):
            a.says(number.to_bytes(2, "big") * 50_000)
        await until(lambda: "does not reply" in a.transport.traffic.problem, what="the problem")
        assert a.transport.traffic.dropped["queue_full"] > 0
        server.thaw()
        await until_heard(a, b, b"again")


async def test_process_that_was_frozen_hears_and_is_heard_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one(tmp_path) as server, nodes("a", "b", address=server.address) as (a, b):
        await connected(a, b)
        loop = asyncio.get_running_loop()
        clock = loop.time
        # all that the process waits for is overdue at once, as after SIGCONT
        monkeypatch.setattr(loop, "time", lambda: clock() + 10 * TIMEOUT_S)
        await until_heard(a, b, b"from a")
        await until_heard(b, a, b"from b")


@pytest.mark.slow
async def test_sentinels_name_the_next_primary(tmp_path: Path) -> None:
    async with sentinel_set(tmp_path) as (servers, sentinels):
        config = {"sentinel": {"master": "kv", "addresses": [each.address for each in sentinels]}}
        async with nodes("a", "b", **config) as (a, b):
            await connected(a, b)
            await until_heard(a, b, b"before")
            await servers[0].kill()
            await until_heard(a, b, b"after")
            assert "primary" not in a.transport.traffic.problem


@pytest.mark.slow
async def test_cluster_carries_a_pool_on_one_shard_and_fails_over(tmp_path: Path) -> None:
    async with cluster(tmp_path) as servers, nodes("a", "b", cluster=[servers[5].address]) as (a, b):
        await connected(a, b)
        await until_heard(a, b, b"before")
        used = await shard_of_channels(servers)
        assert len(used) == 1
        await used[0].kill()
        await until_heard(a, b, b"after")


async def shard_of_channels(servers: list[Server]) -> list[Server]:
    """Return the servers that have subscribers."""
    return [each for each in servers if await each.call("PUBSUB", "SHARDCHANNELS")]
