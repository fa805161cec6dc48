from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

import pytest

from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.engine import Engine
from kvatlas.sim.errors import EngineStoppedError
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler
from kvatlas.sim.service_times import ServiceTimes


def make_request(name: str, n_prompt: int = 6, n_output: int = 3) -> Request:
    return Request(name, array("I", range(n_prompt)), array("I", range(100, 100 + n_output)))


@asynccontextmanager
async def running_engine(*, time_scale: float = 0.0, cpu_blocks: int = 0) -> AsyncGenerator[Engine]:
    cache = BlockCache(block_size=2, gpu_blocks=32, cpu_blocks=cpu_blocks)
    times = ServiceTimes(prefill_s_per_token=0.001, load_s_per_token=0.001, step_s=0.001)
    engine = Engine(Scheduler(cache, times=times), None, wall_clock=lambda: 0.0, time_scale=time_scale)
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()


async def tokens_of(engine: Engine, request: Request) -> list[int]:
    return [token async for generated in engine.generate(request) for token in generated.tokens]


@pytest.mark.parametrize("time_scale", [0.0, 1.0])
async def test_engine_generates_the_output_of_every_request(time_scale: float) -> None:
    async with running_engine(time_scale=time_scale) as engine:
        outputs = await asyncio.gather(*(tokens_of(engine, make_request(name)) for name in "abc"))

    assert outputs == [[100, 101, 102]] * 3


@pytest.mark.parametrize("time_scale", [0.0, 1.0])
async def test_engine_wakes_up_for_a_load(time_scale: float) -> None:
    async with running_engine(time_scale=time_scale, cpu_blocks=16) as engine:
        await tokens_of(engine, make_request("a"))
        engine.scheduler.reset_cache()
        again = make_request("b")
        await tokens_of(engine, again)

    assert (again.cached_tokens, engine.scheduler.counters.cpu_hits) == (6, 6)


async def test_leaving_early_aborts_the_request() -> None:
    async with running_engine() as engine:
        async with aclosing(engine.generate(make_request("a", n_output=20))) as tokens:
            await anext(tokens)

        assert engine.scheduler.cache.gpu.references == 0


async def test_requests_fail_when_the_engine_stops() -> None:
    async with running_engine(time_scale=1000.0) as engine:
        waiting = asyncio.create_task(tokens_of(engine, make_request("a")))
        await asyncio.sleep(0)  # lets the engine accept the request

    with pytest.raises(EngineStoppedError, match="the engine stopped"):
        await waiting
    assert not engine.running
    with pytest.raises(EngineStoppedError, match="has stopped"):
        await tokens_of(engine, make_request("b"))
