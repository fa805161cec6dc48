"""Requests through a real Envoy that asks kvatlas, and through one that asks nobody."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile

from kvatlas.sim.envoy import EnvoyConfig, EnvoyProcess, find_envoy, gateway_config, without_picker
from kvatlas.sim.held_port import HeldPort

from ..common.server import PATH
from ..common.tables import Cell, Table
from .extproc_load import HOST, MODES, Running, chat


async def through_envoy(options: argparse.Namespace, ours: Running) -> Table:
    """Measure wrk through one Envoy without a picker, and with kvatlas; upstream is Envoy itself."""
    rows: list[tuple[Cell, ...]] = []
    for n_bytes in options.body_bytes:
        for mode in MODES:
            rates = [await _wrk(options, mode, n_bytes, ours, is_picked=picked) for picked in (False, True)]
            plain, picked = rates
            rows.append((f"`{mode}`", n_bytes, round(plain), round(picked), f"{picked / plain:.0%}"))
    headings = ("mode", "bytes of body", "without ext-proc", "with kvatlas", "")
    title = "Requests per second through Envoy"
    return Table(name="envoy", title=title, headings=headings, rows=tuple(rows))


async def _wrk(
    options: argparse.Namespace, mode: str, n_bytes: int, ours: Running, *, is_picked: bool
) -> float:
    """Return the requests per second."""
    upstream = HeldPort(HOST)
    config = gateway_config(
        "buffered" if mode == "BUFFERED" else "duplex",
        gateway=(HOST, 0),
        admin=(HOST, 0),
        picker=(HOST, ours.port),
        servers=[(HOST, upstream.number)],
    )
    config = _with_upstream(config if is_picked else without_picker(config), upstream.number)
    with tempfile.NamedTemporaryFile(suffix=".lua") as script:
        head = 'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\nwrk.body = '
        script.write(f"{head}{json.dumps(chat(n_bytes).decode())}\n".encode())
        script.flush()
        async with EnvoyProcess(config, binary=find_envoy()) as envoy:
            url = f"{envoy.gateway_url}{PATH}"
            flags = ["-t", "1", "-c", "16", "-d", f"{options.seconds:g}s", "-s", script.name]
            client = await asyncio.create_subprocess_exec("wrk", *flags, url, stdout=asyncio.subprocess.PIPE)
            output = (await client.communicate())[0].decode()
    found = re.search(r"Requests/sec: +([\d.]+)", output)
    if found is None or "Non-2xx" in output:
        raise SystemExit(f"wrk failed:\n{output}")
    return float(found[1])


def _with_upstream(config: EnvoyConfig, port: int) -> EnvoyConfig:
    """Return the gateway with a model server in it that answers at once."""
    manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "envoy.extensions.filters.http.router.v3.Router"
    kind = "type.googleapis.com/"
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "{}"}}}
    http = {
        "@type": kind + manager,
        "stat_prefix": "upstream",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": kind + router}}],
    }
    listener = {
        "name": "upstream",
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": http}]}
        ],
    }
    config["static_resources"]["listeners"].append(listener)
    return config
