"""Several simulated servers in one process, and the kvatlas configuration that names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import yaml

from ..configs.listeners import ServerConfig as ListenersConfig
from ..configs.schema import EndpointsConfig, ModelConfig, StaticEndpoint, TierConfig
from ..scorers.filters.roles import ROLE_LABEL
from .model_text import ModelText
from .roles import LABELS, ZONE_LABEL
from .server import ServerConfig, SimServer


class Fleet:
    """Servers that start and stop together, or inside `async with`.

    Args:
        configs: one per server; at least one, all with the same model and block size.
        text: tokenizer of the model they serve.
        host: address they listen on.
    """

    def __init__(self, configs: Sequence[ServerConfig], text: ModelText, *, host: str = "127.0.0.1") -> None:
        self.servers = tuple(SimServer(config, text, host=host) for config in configs)
        self._host = host
        self._running = AsyncExitStack()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every server's HTTP API."""
        return [(self._host, server.ports.http) for server in self.servers]

    @property
    def metrics_urls(self) -> list[str]:
        """`/metrics` of every server."""
        return [f"http://{server.address}/metrics" for server in self.servers]

    async def start(self) -> None:
        """Start every server; if one fails, none is left running."""
        async with AsyncExitStack() as stack:
            for server in self.servers:
                await stack.enter_async_context(server)
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """Stop every server."""
        await self._running.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def write_kvatlas_config(
        self,
        file: Path,
        *,
        tokenizer: Path,
        ext_proc: str,
        rest: str,
        sections: Mapping[str, object] | None = None,
    ) -> None:
        """Write a `KVAtlasConfig` that routes to these servers.

        Args:
            file: YAML file to write.
            tokenizer: model folder.
            ext_proc: `HOST:PORT` of the ext-proc listener; port 0 takes a free one.
            rest: `HOST:PORT` of the REST listener, likewise; metrics are served there too.
            sections: further sections, as in a file.
        """
        config = self.servers[0].config
        gpu = TierConfig(name="gpu", media=("GPU",))
        cpu = TierConfig(name="cpu", media=("CPU",), lru_capacity_per_server=config.cpu_blocks or "auto")
        storage = TierConfig(name="storage", media=("STORAGE",), scope="shared")
        tiers = [gpu]
        if config.cpu_blocks:
            tiers.append(cpu)
        if config.storage is not None:
            tiers.append(storage)
        own = {
            "server": ListenersConfig(ext_proc=ext_proc, health="", rest=rest, metrics=""),
            "model": ModelConfig(names=(config.model,), tokenizer=str(tokenizer)),
            "endpoints": EndpointsConfig(static=tuple(_endpoint(server) for server in self.servers)),
            "tiers": tuple(tiers),
        }
        head = {"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig"}
        file.write_text(
            yaml.safe_dump(
                head | msgspec.to_builtins(own, enc_hook=str) | dict(sections or {}), sort_keys=False
            )
        )


def _labels(config: ServerConfig) -> dict[str, str]:
    role = {ROLE_LABEL: LABELS[config.role]} if config.role else {}
    return role | ({ZONE_LABEL: config.zone} if config.zone else {})


def _endpoint(server: SimServer) -> StaticEndpoint:
    return StaticEndpoint(
        name=server.config.name,
        address=server.address,
        events=server.events_address,
        replay=server.replay_address,
        metrics=f"http://{server.address}/metrics",
        labels=_labels(server.config),
    )
