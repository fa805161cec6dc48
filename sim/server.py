"""A simulated vLLM server: OpenAI API, `/metrics` and KV events on real sockets over a simulated engine."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Self
from uuid import uuid4

from aiohttp import web

from . import hardware
from .block_cache import BlockCache
from .engine import Engine
from .faults import NO_EVENT_FAULTS, NO_HTTP_FAULTS, EventFaults, HttpFaults
from .held_port import HeldPort
from .http_api import HttpApi
from .kv_exchange import KvConnector, KvExchange
from .media import EncodedMedia, MediaEncoder
from .metrics import EngineCollector, ServerInfo
from .model_text import ModelText
from .publisher import BUFFERED_BATCHES, Publisher
from .roles import ENCODE
from .scheduler import Scheduler
from .sequence import Lora
from .service_times import ServiceTimes
from .storage_tier import StorageTier

AT_ONCE_S = 0.001
"""Time that running requests get when a server stops. For aiohttp, 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Configuration of one simulated server; tier sizes are in blocks.

    Attributes:
        name: sent with each response as `x-served-by`.
        model: served name.
        role: one of `LABELS`; empty for a server without a role. An encode server only encodes media.
        zone: value of its label for the zone; empty for none.
        loras: adapters, served under their own names.
        block_size: tokens per block.
        gpu_blocks: GPU pool; as in vLLM one block is reserved.
        cpu_blocks: CPU tier; 0 for no CPU tier.
        chunk_blocks: blocks per chunk of the CPU tier.
        self_describing: whether CPU events contain tokens.
        kv_events: whether the engine publishes events.
        max_num_seqs: maximum number of concurrently running requests.
        max_num_batched_tokens: maximum number of tokens per step.
        times: service times.
        time_scale: real seconds per simulated second.
        storage: storage tier, which servers of one process may share; None for no storage.
        encoded: media that need no encoding, which servers of one process may share; None if media take no time.
        encode_s: simulated seconds per image or other item, encoded one after another.
        exchange: by which servers of one process send each other KV state; None for a server that does not.
        replay_batches: number of event batches kept for replay.
        event_faults: injected into live event batches.
        http_faults: injected into completion requests.
        seed: of the faults.
    """

    name: str
    model: str
    role: str = ""
    zone: str = ""
    loras: tuple[str, ...] = ()
    block_size: int = 16
    gpu_blocks: int = 1024
    cpu_blocks: int = 0
    chunk_blocks: int = 1
    self_describing: bool = True
    kv_events: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    times: ServiceTimes = field(default_factory=ServiceTimes)
    time_scale: float = 1.0
    storage: StorageTier | None = None
    encoded: EncodedMedia | None = None
    encode_s: float = hardware.ENCODE_S_PER_ITEM
    exchange: KvExchange | None = None
    replay_batches: int = BUFFERED_BATCHES
    event_faults: EventFaults = NO_EVENT_FAULTS
    http_faults: HttpFaults = NO_HTTP_FAULTS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of one server; 0 takes a free one."""

    http: int = 0
    events: int = 0
    replay: int = 0


ANY_PORTS = Ports()


class SimServer:
    """One server, running from `start` to `stop`, or inside `async with`.

    A second start is a new life, as after a crash: the same ports, an empty cache, sequence numbers from 0. The ports
    stay reserved between two lives.

    Args:
        config: what it is.
        text: its model's tokenizer.
        host: address to listen on.
        ports: where to listen.
    """

    def __init__(
        self, config: ServerConfig, text: ModelText, *, host: str = "127.0.0.1", ports: Ports = ANY_PORTS
    ) -> None:
        self.config = config
        self.ports = ports
        self._held: tuple[HeldPort, ...] = ()
        self._text = text
        self._host = host
        self._rng = Random(f"{config.name} {config.seed}").random
        self._running = AsyncExitStack()

    @property
    def address(self) -> str:
        """`HOST:PORT` that serves requests."""
        return f"{self._host}:{self.ports.http}"

    @property
    def events_address(self) -> str:
        """ZMQ address of the PUB socket; empty without KV events."""
        return f"tcp://{self._host}:{self.ports.events}" if self.config.kv_events else ""

    @property
    def replay_address(self) -> str:
        """ZMQ address of the replay socket; empty without KV events."""
        return f"tcp://{self._host}:{self.ports.replay}" if self.config.kv_events else ""

    async def start(self) -> None:
        """Listen and run the engine.

        Raises:
            OSError: a port is taken.
        """
        self._hold_ports()
        async with AsyncExitStack() as stack:
            listener = stack.enter_context(socket.create_server((self._host, self.ports.http)))
            publisher = self._publisher(stack)
            engine = self._engine(publisher, self._connector(stack))
            task = asyncio.create_task(engine.run())
            stack.push_async_callback(_end, task)
            runner = web.AppRunner(
                self._api(engine).application(),
                access_log=None,
                handler_cancellation=True,
                shutdown_timeout=AT_ONCE_S,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.SockSite(runner, listener).start()
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """Drop every connection and end the engine; requests in it fail."""
        await self._running.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _hold_ports(self) -> None:
        if not self._held:
            wanted = (self.ports.http, self.ports.events, self.ports.replay)
            self._held = tuple(HeldPort(self._host, number) for number in wanted)
            self.ports = Ports(*(port.number for port in self._held))

    def _publisher(self, stack: AsyncExitStack) -> Publisher | None:
        if not self.config.kv_events:
            return None
        publisher = Publisher(
            f"kv@{self.address}@{self.config.model}",
            host=self._host,
            port=self.ports.events,
            replay_port=self.ports.replay,
            buffer_size=self.config.replay_batches,
            faults=self.config.event_faults,
            rng=self._rng,
        )
        stack.callback(publisher.close)
        return publisher

    def _connector(self, stack: AsyncExitStack) -> KvConnector | None:
        exchange, config = self.config.exchange, self.config
        if exchange is None:
            return None
        address = (self._host, self.ports.http)
        connector = exchange.join(str(uuid4()), config.name, address=address)
        stack.callback(exchange.leave, connector)
        return connector

    def _engine(self, publisher: Publisher | None, connector: KvConnector | None) -> Engine:
        config = self.config
        cache = BlockCache(
            block_size=config.block_size,
            gpu_blocks=config.gpu_blocks,
            cpu_blocks=config.cpu_blocks,
            chunk_blocks=config.chunk_blocks,
            self_describing=config.self_describing,
            storage=config.storage,
        )
        scheduler = Scheduler(
            cache,
            times=config.times,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            connector=connector,
        )
        return Engine(scheduler, publisher, wall_clock=time.time, time_scale=config.time_scale)

    def _api(self, engine: Engine) -> HttpApi:
        config = self.config
        info = ServerInfo(config.model, config.gpu_blocks, len(config.loras), time.time())
        return HttpApi(
            engine,
            self._text,
            EngineCollector(engine.scheduler, info),
            name=config.name,
            model=config.model,
            loras=[Lora(name, number) for number, name in enumerate(config.loras, start=1)],
            context_tokens=engine.scheduler.cache.gpu_tokens,
            faults=config.http_faults,
            rng=self._rng,
            encoder=self._encoder(),
        )

    def _encoder(self) -> MediaEncoder | None:
        config = self.config
        if config.encoded is None:
            return None
        return MediaEncoder(
            config.encoded, config.encode_s * config.time_scale, is_alone=config.role == ENCODE
        )


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel the engine; raise its error if it failed."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
