"""A process whose configuration changes, as far as the change concerns it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.fleet.errors import ConfigRefusedError
from kvatlas.routing.plan.config_files import ConfigFiles, ConfigFollower
from kvatlas.routing.plan.live import LiveConfig
from kvatlas.routing.plan.metrics import ConfigMetrics
from kvatlas.routing.plan.plan import Plan

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"


@dataclass
class Process:
    """Stands for the parts of the process that a configuration is put in force in."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    switched: list[tuple[int, KVAtlasConfig]] = field(default_factory=list[tuple[int, KVAtlasConfig]])
    settled: int = 0
    refusal: str | None = None
    faults: list[Exception] = field(default_factory=list[Exception])
    """Raised by the next switches, after a part of each."""
    prepare_faults: list[Exception] = field(default_factory=list[Exception])
    """Raised while the next changes are prepared."""
    settle_faults: list[Exception] = field(default_factory=list[Exception])
    """Raised while the next changes settle."""
    follower: ConfigFollower = field(init=False)

    async def prepare(self, plan: Plan) -> None:  # noqa: ARG002 - as `LiveConfig` calls it
        await asyncio.sleep(0)
        if self.prepare_faults:
            raise self.prepare_faults.pop(0)

    def switch(self, plan: Plan, generation: int) -> None:
        if self.refusal is not None:
            raise ConfigRefusedError(self.refusal)
        self.switched.append((generation, plan.config))
        if self.faults:
            raise self.faults.pop(0)

    async def settle(self) -> None:
        await asyncio.sleep(0)
        if self.settle_faults:
            raise self.settle_faults.pop(0)
        self.settled += 1

    def value(self, metric: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kvatlas_config_{metric}", labels)


def write(path: Path, text: str) -> None:
    """With a time stamp of its own, whatever the file system's resolution."""
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))


def live_config(path: Path, text: str, process: Process) -> LiveConfig:
    """Start a process with a file that holds `text`."""
    write(path, HEAD + text)
    files = ConfigFiles(path)
    live = LiveConfig(
        files.load().config,
        paths=files.paths,
        prepare=process.prepare,
        switch=process.switch,
        settle=process.settle,
        metrics=ConfigMetrics(process.registry),
    )
    process.follower = ConfigFollower(files, live)
    return live


async def look(process: Process) -> None:
    """Look twice: a change is seen by the first look, and loaded by the next if the file is at rest."""
    await process.follower.look()
    await process.follower.look()


def queues(process: Process) -> list[tuple[int, float]]:
    return [(generation, config.weights.queue) for generation, config in process.switched]
