"""WebSockets through a real Envoy that allows them: their clients send nothing before the server has accepted."""

from __future__ import annotations

import asyncio

import pytest

from kvatlas.sim.envoy import EnvoyConfig
from support.envoy_gateway import gateway, with_processing_mode
from support.waiting import PATIENCE_S


def with_websockets(config: EnvoyConfig) -> EnvoyConfig:
    """Return the configuration of a gateway that passes upgrades to WebSocket on."""
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    chain["filters"][0]["typed_config"]["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    return config


@pytest.mark.slow
@pytest.mark.parametrize("body_mode", ["FULL_DUPLEX_STREAMED", "NONE"])
async def test_websocket_is_opened_at_the_picked_server_and_passes(body_mode: str) -> None:
    def edit(config: EnvoyConfig) -> EnvoyConfig:
        return with_websockets(with_processing_mode(request_body_mode=body_mode)(config))

    async with gateway("duplex", edit) as at:
        async with asyncio.timeout(PATIENCE_S), at.client.ws_connect("/v1/realtime") as socket:
            for text in ("first", "second"):
                await socket.send_str(text)
                assert await socket.receive_str() == f"{at.servers[0].address} {text}"
        completion = await at.completion()

    assert completion.response.status == 101
    assert completion.response.time_to_first_byte_s is not None
