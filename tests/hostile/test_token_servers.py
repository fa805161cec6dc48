"""Engines whose answers with token ids are hostile."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from support.serve import serving

DEEP = 100_000


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(b'{"token_ids": ' + b"[" * DEEP, "malformed", id="lists"),
        pytest.param(b'{"more": ' + b'{"a": ' * DEEP, "malformed", id="objects_that_are_skipped"),
        pytest.param(b'{"token_ids": [' + b"1," * 2**23 + b"1]}", "too_large", id="endless"),
    ],
)
async def test_request_is_routed_and_the_server_is_skipped(
    tmp_path: Path, answer: bytes, outcome: str
) -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(body=answer, content_type="application/json")

    app = web.Application()
    app.router.add_post("/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        remote = {"url": f"http://{host}:{port}", "failures": 2, "timeout": "30s", "cooldown": "1m"}
        endpoint = {"name": "a", "address": "127.0.0.1:1", "events": "", "metrics": ""}
        config = {"model": {"names": ["m"], "remoteTokenizer": remote}, "endpoints": {"static": [endpoint]}}
        async with serving(config, tmp_path, ready=False) as served:
            for number in range(3):
                messages = [{"role": "user", "content": f"hello {number}"}]
                found = await served.post("/v1/score", {"model": "m", "messages": messages})
                assert found["noPrefixReason"] == "no_tokenizer"
            metrics = await served.metrics()
    finally:
        await runner.cleanup()
    assert f'kvatlas_remote_tokenizations_total{{outcome="{outcome}"}} 2.0' in metrics
    assert 'kvatlas_remote_tokenizations_total{outcome="unavailable"} 1.0' in metrics
    assert "kvatlas_remote_tokenizer_servers_open 1.0" in metrics
