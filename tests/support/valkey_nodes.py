"""Replicas' transports on a Valkey or Redis server, as tests use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from kvatlas.app.replicas.valkey import Valkey
from kvatlas.configs.replicas import ValkeyConfig
from kvatlas.fleet.replicas.replica import Outgoing
from support.waiting import until


class Node:
    """A transport and what it received."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self.received: list[bytes] = []
        converted = msgspec.convert(config, ValkeyConfig)
        self.transport = Valkey(converted, pool="p", replica=name, on_message=self.received.append)

    def says(self, payload: bytes, to: str | None = None) -> None:
        self.transport.send(Outgoing(to, payload))

    async def until_received(self, payload: bytes) -> None:
        await until(lambda: payload in self.received, what=f"{payload!r} among {self.received}")


@asynccontextmanager
async def nodes(*names: str, **config: Any) -> AsyncGenerator[list[Node]]:
    """Run transports with one configuration."""
    made = [Node(name, config) for name in names]
    tasks = [asyncio.create_task(each.transport.run()) for each in made]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def connected(*found: Node) -> None:
    await until(lambda: all(each.transport.is_connected for each in found), what="connections")


async def until_heard(speaker: Node, listener: Node, payload: bytes) -> None:
    """Say something again and again until it is received, as heartbeats are."""

    def is_heard() -> bool:
        speaker.says(payload)
        return payload in listener.received

    await until(is_heard, what=f"{payload!r}")
