"""The mesh between replicas over real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from kvatlas.app.errors import ReplicaError
from kvatlas.app.replicas.discovery import listed, resolved
from kvatlas.app.replicas.mesh import Discovery, Mesh, MeshOptions
from kvatlas.app.replicas.mesh_keys import MeshKeys, load_mesh_keys, mesh_keys
from kvatlas.app.replicas.slices import followed
from kvatlas.app.replicas.transport import MAX_QUEUED
from kvatlas.fleet.replicas.replica import Outgoing
from support.api_server import ApiServerDouble
from support.cable import Cable
from support.waiting import until

KEYS = mesh_keys(b"s" * 32)


class Node:
    """A mesh and what it received."""

    def __init__(
        self, name: str, discover: Discovery, keys: MeshKeys | None, *, answers: bool, listen: str
    ) -> None:
        self.received: list[bytes] = []
        options = MeshOptions(listen=listen, discover=discover, keys=keys, answers=answers)
        self.mesh = Mesh(options, replica=name, on_message=self.received.append)

    async def until_received(self, payload: bytes) -> None:
        await until(lambda: payload in self.received, what=f"{payload!r} among {self.received}")


@asynccontextmanager
async def node(
    name: str,
    *siblings: Node,
    keys: MeshKeys | None = None,
    answers: bool = True,
    discover: Discovery | None = None,
    listen: str = "tcp://127.0.0.1:0",
) -> AsyncGenerator[Node]:
    """Run a mesh that finds these siblings."""
    discover = discover or listed(each.mesh.address for each in siblings)
    made = Node(name, discover, keys, answers=answers, listen=listen)
    running = asyncio.create_task(made.mesh.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.mesh.close()


async def meet(*nodes: Node) -> None:
    """Wait until each of them sends to every other."""
    others = len(nodes) - 1
    await until(
        lambda: all(each.mesh.traffic.connections >= others for each in nodes), what="connections of all"
    )


@pytest.mark.parametrize("keys", [pytest.param(None, id="plain"), pytest.param(KEYS, id="curve")])
async def test_messages_reach_all_or_the_one_that_is_named(keys: MeshKeys | None) -> None:
    async with node("a", keys=keys) as a, node("b", a, keys=keys) as b, node("c", a, b, keys=keys) as c:
        await meet(a, b, c)
        a.mesh.send(Outgoing(None, b"all"))
        a.mesh.send(Outgoing("c", b"one"))
        await b.until_received(b"all")
        await c.until_received(b"one")
        assert c.received == [b"all", b"one"]
        assert b.received == [b"all"]
        b.mesh.send(Outgoing("a", b"back"))
        await a.until_received(b"back")
        assert (a.mesh.traffic.sent, a.mesh.traffic.sent_bytes) == (3, 9)
        assert (c.mesh.traffic.received, c.mesh.traffic.received_bytes) == (2, 6)


async def test_sibling_that_knows_nobody_is_connected_back() -> None:
    async with node("a") as a, node("b", a) as b:
        await meet(a, b)
        b.mesh.send(Outgoing(None, b"hello"))
        await a.until_received(b"hello")


async def test_name_is_resolved_and_own_address_is_no_sibling() -> None:
    async with node("a") as a:
        port = int(a.mesh.address.rpartition(":")[2])
        both = resolved("localhost", port)
        async with node("b", discover=both) as b:
            await meet(a, b)
            b.mesh.send(Outgoing(None, b"once"))
            await a.until_received(b"once")
            assert b.received == []


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        pytest.param(mesh_keys(b"o" * 32), "secret", id="other_secret"),
        pytest.param(None, "handshake", id="none"),
    ],
)
async def test_sibling_without_the_secret_is_refused_and_said(
    keys: MeshKeys | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with node("a", keys=KEYS) as a, node("b", a, keys=keys) as b:
        await until(lambda: a.mesh.traffic.refused[reason] > 0, what="a refused connection")
        a.mesh.send(Outgoing(None, b"secret"))
        assert a.mesh.traffic.sent == 0
        assert b.received == []
        assert any("a connection was refused" in each.message for each in caplog.records)


async def test_listener_without_the_secret_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with node("a") as a, node("b", a, keys=KEYS) as b:
        with caplog.at_level(logging.WARNING):
            await until(lambda: a.mesh.traffic.refused["handshake"] > 0, what="a refused connection")
        b.mesh.send(Outgoing(None, b"secret"))
        assert a.received == []


async def test_frozen_sibling_costs_the_others_nothing_and_its_queue_is_bounded() -> None:
    context = zmq.Context()
    async with node("a") as a, node("b", a) as b:
        frozen = context.socket(zmq.DEALER)  # nobody reads it
        frozen.setsockopt(zmq.ROUTING_ID, b"@frozen")
        frozen.setsockopt(zmq.PROBE_ROUTER, 1)
        frozen.setsockopt(zmq.RCVHWM, 64)
        frozen.connect(a.mesh.address)
        await meet(a, b)
        await until(lambda: a.mesh.traffic.connections >= 2, what="the third")
        payload = b"x" * 65536
        for number in range(3 * MAX_QUEUED):
            a.mesh.send(Outgoing("frozen", payload))
            if number % 64 == 0:
                a.mesh.send(Outgoing("b", number.to_bytes(4, "big")))
                await asyncio.sleep(0)
        await b.until_received((3 * MAX_QUEUED - 64).to_bytes(4, "big"))
        assert a.mesh.traffic.dropped["queue_full"] > MAX_QUEUED
        assert len(b.received) == 3 * MAX_QUEUED // 64
        context.destroy(linger=0)


async def test_sibling_that_is_gone_is_forgotten() -> None:
    async with node("a") as a:
        async with node("b", a) as b:
            await meet(a, b)

        def is_forgotten() -> bool:
            a.mesh.send(Outgoing("b", b"x"))
            return a.mesh.traffic.dropped["not_connected"] > 1

        await until(is_forgotten, what="a message to nobody")


async def test_address_in_use_is_said() -> None:
    options = MeshOptions(listen="tcp://127.0.0.1:0", discover=listed([]))
    first = Mesh(options, replica="a", on_message=print)
    with pytest.raises(
        ReplicaError, match=r"cannot listen for replicas on 'tcp://127.0.0.1:\d+': Address already in use"
    ):
        Mesh(MeshOptions(listen=first.address, discover=listed([])), replica="b", on_message=print)
    await first.close()


def test_secret_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(ReplicaError, match=r"cannot read .*No such file"):
        load_mesh_keys(str(file))
    file.write_text("short\n")
    with pytest.raises(ReplicaError, match="has 5 bytes, expected 32 to 4096; make one with"):
        load_mesh_keys(str(file))
    file.write_bytes(b"s" * 32 + b"\n")
    assert load_mesh_keys(str(file)) == KEYS


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_next_life_at_the_same_address_is_connected_to(scheme: str, tmp_path: Path) -> None:
    listen = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path / 'b'}"
    async with node("b/0", listen=listen) as b:
        address = b.mesh.address
    async with node("a", discover=listed([address]), answers=False) as a:
        for life in (b"b/1", b"b/2"):
            async with node(life.decode(), listen=address) as b:
                await until(lambda b=b: b.mesh.traffic.connections == 1, what=f"{life!r}")  # type: ignore[misc]
                b.mesh.send(Outgoing(None, life))
                await a.until_received(life)


async def test_replicas_find_each_other_by_endpoint_slices() -> None:
    path = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
    server = ApiServerDouble()
    await server.start()
    try:
        async with node("a", listen="tcp://127.0.0.2:0") as a:
            port = int(a.mesh.address.rpartition(":")[2])
            discover = followed(server.access, "ns", "kvatlas", port)
            async with node("b", discover=discover, listen=f"tcp://127.0.0.1:{port}") as b:
                endpoints = [
                    {"addresses": [host], "conditions": {"ready": False}}
                    for host in ("127.0.0.1", "127.0.0.2")
                ]
                labels = {"kubernetes.io/service-name": "kvatlas"}
                body = {"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": endpoints}
                server.put(path, "kvatlas-x", body)
                await meet(a, b)
                b.mesh.send(Outgoing(None, b"hello"))
                await a.until_received(b"hello")
    finally:
        await server.stop()


@pytest.mark.slow
async def test_partition_is_noticed_and_healed_without_help() -> None:
    async with node("a", answers=False) as a:
        cable = Cable(a.mesh.address)
        server = await asyncio.start_server(cable.pass_on, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with node("b", discover=listed([f"tcp://127.0.0.1:{port}"])) as b:
            await until(lambda: a.mesh.traffic.connections == 1, what="a connection")
            cable.is_cut = True

            def is_noticed() -> bool:
                a.mesh.send(Outgoing("b", b"lost"))
                return a.mesh.traffic.dropped["not_connected"] > 0

            await until(is_noticed, what="the loss of the connection")
            cable.is_cut = False

            def is_heard() -> bool:
                a.mesh.send(Outgoing("b", b"found"))
                return b"found" in b.received

            await until(is_heard, what="the connection again")
        server.close()
        await cable.close()


async def test_failure_to_take_a_message_is_reported() -> None:
    reported = list[object]()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context.get("exception"))
    )

    def fail(_: bytes) -> None:
        raise ZeroDivisionError

    async with node("a") as a:
        options = MeshOptions(listen="tcp://127.0.0.1:0", discover=listed([a.mesh.address]))
        deaf = Mesh(options, replica="b", on_message=fail)
        running = asyncio.create_task(deaf.run())
        try:
            await until(lambda: a.mesh.traffic.connections, what="a connection")
            a.mesh.send(Outgoing(None, b"poison"))
            await until(lambda: reported, what="a report")
            assert isinstance(reported[0], ZeroDivisionError)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await deaf.close()
