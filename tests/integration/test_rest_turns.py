"""Answers about a large fleet, which leave the event loop to requests while they are made."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest

from kvatlas.fleet import turns
from support.local_process import local_process

ENDPOINTS = [
    {"name": f"vllm-{number}", "address": f"127.0.0.1:{number + 1}", "metrics": "", "events": ""}
    for number in range(4)
]


@pytest.mark.parametrize(
    ("path", "module", "step"),
    [
        pytest.param("/v1/endpoints", "api.rest.endpoints", "endpoint_out", id="endpoints"),
        pytest.param("/v1/doctor", "api.rest.doctor", "examine", id="doctor_checks"),
        pytest.param("/v1/doctor", "fleet.state_metrics", "counter", id="doctor_metrics"),
        pytest.param("/metrics", "fleet.state_metrics", "counter", id="metrics"),
    ],
)
async def test_other_tasks_run_between_the_steps_of_an_answer(
    path: str, module: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_turns, seen = 0, list[int]()

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    def seeing(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **named: Any) -> Any:
            seen.append(n_turns)
            return make(*args, **named)

        return made

    async with local_process(*ENDPOINTS) as process:
        owner = importlib.import_module(f"kvatlas.{module}")
        monkeypatch.setattr(owner, step, seeing(getattr(owner, step)))
        monkeypatch.setattr(turns, "TURN_S", -1.0)
        other = asyncio.create_task(count())
        async with process.session.get(f"{process.url}{path}") as response:
            assert response.status == 200, await response.text()
        other.cancel()
    assert len(set(seen)) >= len(ENDPOINTS), seen
