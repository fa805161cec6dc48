"""One recording, played against a sidecar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from kvatlas.sim.held_port import HeldPort
from support.sidecar.json_values import as_object
from support.sidecar.legs import NOT_ADDED
from support.sidecar.server import Start, stand_in
from support.sidecar_replay.compare import Names, answer_differs, legs_differ
from support.sidecar_replay.engines import HOST, TOGETHER_S, Engines, body_bytes, listening
from support.sidecar_replay.recordings import Json, Recording, here
from support.waiting import until

_SINGLE = ("PREFILL", "PREFILL2", "ENCODER", "ENCODER2", "BOOTSTRAP", "CLOSED")
_PAIRS = ("SIDECAR", "DECODE")
_ANY = "0.0.0.0"  # the reference listens on every address
_DEFAULT_BOOTSTRAP = ":8998"
_BOOTSTRAP_LIMIT_S = 0.3
"""The reference waits 5 s for a bootstrap server; times are not compared."""

_CASE_S = 60.0
"""Longest that a case may take, also on a busy machine."""


async def differences(recording: Recording, start: Start | None = None) -> list[str]:
    """Return what a sidecar does otherwise than recorded; `start` gives another one than the stand-in."""
    try:
        async with asyncio.timeout(_CASE_S):
            return await _differences(recording, start)
    except TimeoutError:
        return [f"did not end within {_CASE_S:.0f} s"]


async def _differences(recording: Recording, start: Start | None) -> list[str]:
    held = _held_ports()
    ports = {name: port.number for name, port in held.items()}
    flags: list[str] = here([*recording.flags], ports)
    if "--kv-connector=mooncake" in flags and not any("bootstrap-port" in each for each in flags):
        flags.append(f"--mooncake-bootstrap-port={ports['BOOTSTRAP']}")
    legs = here(_ported(recording.legs, ports), ports)
    engines = Engines(legs)
    names, found = Names(), list[str]()
    listeners = {each["to"] for each in legs} | _always(ports, flags)
    async with listening(listeners, held, [engines]):
        environment: dict[str, str] = here(dict(recording.environment), ports)
        async with (start or _stand_in)(flags, environment, ports["SIDECAR"]):
            sent = b""
            connector = aiohttp.TCPConnector()
            async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
                address = f"{HOST}:{here(recording.listener, ports)}"
                for request, answer in zip(recording.requests, recording.answers, strict=True):
                    sent = body_bytes(request.get("body"))
                    observed = await _answered(session, here(request, ports), address, engines)
                    found += answer_differs(here(answer, ports), observed, engines.legs, names)
            if not found:
                await _until_settled(engines)
            found += legs_differ(legs, engines.legs, sent, names)
    return found


def _always(ports: Mapping[str, int], flags: list[str]) -> set[str]:
    """Return the engines that listen although nothing may be sent to them."""
    return {"prefill"} | (set() if f"--model-server-port={ports['CLOSED']}" in flags else {"decode"})


def _ported(legs: Any, ports: Mapping[str, int]) -> Any:
    """Put this run's bootstrap port in place of the default one, which other processes may have."""
    replaced = [dict(each) for each in legs]
    for each in replaced:
        params = as_object(as_object(each.get("body")).get("kv_transfer_params"))
        if "remote_bootstrap_addr" in params:
            address = str(params["remote_bootstrap_addr"]).replace(
                _DEFAULT_BOOTSTRAP, f":{ports['BOOTSTRAP']}"
            )
            each["body"] = {
                **each["body"],
                "kv_transfer_params": {**params, "remote_bootstrap_addr": address},
            }
    return replaced


def _held_ports() -> dict[str, HeldPort]:
    held = {name: HeldPort() for name in _SINGLE}
    for name in _PAIRS:
        while f"{name}+1" not in held:
            first = HeldPort(_ANY)
            with contextlib.suppress(OSError, OverflowError):
                held[f"{name}+1"] = HeldPort(_ANY, first.number + 1)
                held[name] = first
    held["SIDECAR+2"] = HeldPort()
    return held


def _stand_in(
    flags: Sequence[str], environment: Mapping[str, str], port: int
) -> AbstractAsyncContextManager[None]:
    return stand_in(flags, environment, port, bootstrap_limit_s=_BOOTSTRAP_LIMIT_S)


async def _answered(session: aiohttp.ClientSession, request: Json, address: str, engines: Engines) -> Json:
    """Send a request, and return its answer in the form of the recordings, the body as bytes."""
    headers = CIMultiDict((name.lower(), value) for name, value in request["headers"])
    body = body_bytes(request.get("body"))
    if (
        not request.get("no_ctype")
        and "content-type" not in headers
        and request["method"] not in ("GET", "HEAD")
    ):
        headers["content-type"] = "application/json"
    headers["host"] = "sidecar.test"
    leaves = asyncio.create_task(engines.until_all_came()) if "cancel_after_ms" in request else None
    asking = asyncio.create_task(
        _asked(session, request, URL(f"http://{address}{request['path']}", encoded=True), headers, body)
    )
    if leaves is not None:
        await asyncio.wait((leaves, asking), return_when=asyncio.FIRST_COMPLETED)
        await leaves
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await asking
        return {}
    return await asking


async def _asked(
    session: aiohttp.ClientSession, request: Json, url: URL, headers: CIMultiDict[str], body: bytes
) -> Json:
    async def pieces() -> AsyncGenerator[bytes]:
        yield body

    try:
        answer = await session.request(
            request["method"],
            url,
            headers=headers,
            data=pieces() if request.get("chunked") else body or None,
            allow_redirects=False,
            skip_auto_headers=NOT_ADDED,
        )
    except aiohttp.ClientConnectionError:
        return {"broken": "connection closed by the sidecar before any answer"}
    found: Json = {"status": answer.status, "headers": [*answer.headers.items()], "body": b""}
    n_events: int | None = request.get("cancel_after_events")
    try:
        async for piece in answer.content.iter_any():
            found["body"] += piece
            if n_events is not None and found["body"].count(b"\n\n") >= n_events:
                events = found["body"].split(b"\n\n")[:n_events]
                found["body"] = b"".join(event + b"\n\n" for event in events)
                break
    except aiohttp.ClientError:
        found["broken"] = "connection closed by the sidecar in the middle of the body"
    answer.close()
    return found


async def _until_settled(engines: Engines) -> None:
    """Wait for the legs that go on behind the client's back."""

    def is_settled() -> bool:
        return len(engines.legs) >= len(engines.recorded) and all(
            leg.is_answered or leg.is_dropped or not (leg.recorded or {}).get("cancelled_by_sidecar")
            for leg in engines.legs
        )

    with contextlib.suppress(AssertionError):
        await until(is_settled, timeout_s=TOGETHER_S)
