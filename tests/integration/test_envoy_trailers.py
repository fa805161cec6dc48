"""A request with trailers and without body, through a real Envoy that knows no header to remove by itself."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events

from kvatlas.sim.envoy import EnvoyConfig, remove_filter
from support.envoy_gateway import DESTINATION, gateway


def trusting_clients(config: EnvoyConfig) -> EnvoyConfig:
    remove_filter(config, "strip_destination")
    return config


async def send_trailers_alone(gateway_url: str, headers: list[tuple[str, str]]) -> None:
    """Send a request of headers and trailers over HTTP/2, and return once its response has ended."""
    url = urlsplit(gateway_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    named = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/v1/completions")]
    connection.send_headers(1, named + headers)
    connection.send_headers(1, [("x-trailer", "t")], end_stream=True)
    try:
        has_ended = False
        while not has_ended:
            writer.write(connection.data_to_send())
            events = connection.receive_data(await reader.read(1 << 16))
            has_ended = any(isinstance(each, h2.events.StreamEnded) for each in events)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_clients_choose_no_address_when_the_picker_gets_headers_alone() -> None:
    spoofed = {DESTINATION: "6.6.6.6:1", "x-prefiller-host-port": "6.6.6.6:1"}
    async with gateway("buffered", trusting_clients) as at:
        await send_trailers_alone(at.envoy.gateway_url, list(spoofed.items()))

        (request,) = [each for server in at.servers for each in server.received]
        assert not spoofed.keys() & set(request.headers)
