"""Where the other replicas listen."""

from __future__ import annotations

import asyncio

import pytest

from kvatlas.app.replicas.discovery import resolved
from support.waiting import until


@pytest.mark.parametrize("host", ["kvatlas..svc", "x" * 64 + ".svc"])
async def test_name_that_no_host_can_have_is_said_and_ends_nothing(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.create_task(asyncio.wait_for(resolved(host, 5570)(lambda _: None), None))
    try:
        await until(lambda: task.done() or bool(caplog.records), what="the line in the log")
        assert not task.done()
        assert f"replicas: cannot resolve {host}" in caplog.text
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
