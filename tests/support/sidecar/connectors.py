"""Order of the prefill and decode legs, by connector."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from support.sidecar.bodies import nixl_prefill, shared_storage_prefill, short_prefill, with_transfer
from support.sidecar.errors import (
    BadBodyError,
    decode_failed,
    drop,
    encoded,
    failed,
    object_of,
    prefill_failed,
)
from support.sidecar.json_values import Json
from support.sidecar.legs import Answer, Call, Legs, NoAnswerError
from support.sidecar.route import Headers
from support.sidecar.settings import Settings
from support.sidecar.usage import cached_tokens_of

Decode = Callable[[Call, int | None], Awaitable[web.StreamResponse]]
"""Sends the decode leg to the engine beside the sidecar, and passes its answer on; with tokens that were cached."""

BOOTSTRAP_LIMIT_S = 5.0
_RETRIED = (502, 503, 504)
_THRESHOLD = "cache_hit_threshold"


class Connectors:
    """The legs of requests with a prefill server.

    Args:
        settings: of the sidecar.
        legs: sends them.
        bootstrap_limit_s: longest wait for Mooncake's bootstrap server.
    """

    def __init__(
        self, settings: Settings, legs: Legs, *, bootstrap_limit_s: float = BOOTSTRAP_LIMIT_S
    ) -> None:
        self._settings, self._legs = settings, legs
        self._bootstrap_limit_s = bootstrap_limit_s
        self._engine_ids: dict[str, dict[int, str]] = {}
        self._detached: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Drop the prefill legs that still run."""
        for task in (left := [*self._detached]):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def run(
        self, call: Call, prefill: str, source: Json | None, *, path: str, decode: Decode
    ) -> web.StreamResponse:
        """Run prefill and decode, and return the answer for the client.

        Args:
            call: the client's request.
            prefill: `HOST:PORT` of the prefill server.
            source: `remote_kv_source` of a pull, None without one.
            path: whose limits the prefill body gets.
            decode: sends the decode leg.

        Raises:
            BadBodyError: the body is not JSON.
            BrokenAnswerError: an engine broke off.
        """
        match self._settings.connector:
            case "nixlv2":
                return await self._nixl(call, prefill, source, path=path, decode=decode)
            case "shared-storage":
                return await self._shared_storage(call, prefill, decode)
            case "sglang":
                return await self._sglang(call, prefill, decode)
            case "mooncake":
                return await self._mooncake(call, prefill, decode)
            case "offloading":
                return await self._offloading(call, prefill, source, decode)

    async def _nixl(
        self, call: Call, prefill: str, source: Json | None, *, path: str, decode: Decode
    ) -> web.StreamResponse:
        body = object_of(call.body, prefix="invalid JSON: ")
        if body is None:
            raise drop(call.request)
        call = call.with_header("x-request-id", str(uuid.uuid1()))
        leg = call.with_body(encoded(nixl_prefill(body, path, source)))
        try:
            answer = await self._retried(prefill, leg)
        except NoAnswerError as error:
            return prefill_failed(error)
        if not answer.is_good:
            return answer.passed_on()
        said = object_of(answer.body) or {}
        leg = call.with_body(encoded(with_transfer(body, said.get("kv_transfer_params"))))
        return await decode(leg, cached_tokens_of(said))

    async def _retried(self, prefill: str, leg: Call) -> Answer:
        for _ in range(self._settings.retries):
            try:
                answer = await self._legs.whole(prefill, leg)
            except NoAnswerError as error:
                if error.is_address:
                    raise
            else:
                if answer.status not in _RETRIED:
                    return answer
            await asyncio.sleep(self._settings.backoff_s)
        return await self._legs.whole(prefill, leg)

    async def _sglang(self, call: Call, prefill: str, decode: Decode) -> web.StreamResponse:
        body = object_of(call.body, prefix="failed to parse request body: ") or {}
        bootstrap = {
            "bootstrap_host": _host(prefill),
            "bootstrap_port": self._settings.sglang_port,
            "bootstrap_room": time.time_ns() + random.randrange(1000),
        }
        both = call.with_body(encoded(body | bootstrap))
        self._detach(prefill, both)
        return await decode(both, None)

    async def _mooncake(self, call: Call, prefill: str, decode: Decode) -> web.StreamResponse:
        body = object_of(call.body) or {}
        host = _host(prefill)
        address = f"{f'[{host}]' if ':' in host else host}:{self._settings.mooncake_port}"
        try:
            ids = await self._engines_at(address, call)
        except BadBodyError as error:
            return failed(502, str(error))
        rank, engine_id = random.choice([*ids.items()])
        transfer_id = f"xfer-{uuid.uuid4()}"
        there = {"do_remote_prefill": False, "do_remote_decode": True, "transfer_id": transfer_id}
        here = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": transfer_id,
            "remote_bootstrap_addr": f"http://{address}",
            "remote_engine_id": engine_id,
        }
        leg = call.with_header("x-data-parallel-rank", str(rank), replaces=True)
        self._detach(prefill, leg.with_body(encoded(short_prefill(body, there))))
        return await decode(call.with_body(encoded(with_transfer(body, here))), None)

    async def _engines_at(self, address: str, call: Call) -> dict[int, str]:
        """Return rank -> engine id, as the bootstrap server at `address` said the first time."""
        if address not in self._engine_ids:
            query = Call(call.request, "/query", Headers(), b"")
            try:
                async with asyncio.timeout(self._bootstrap_limit_s):
                    answer = await self._legs.whole(address, query, method="GET")
            except (NoAnswerError, TimeoutError) as error:
                raise BadBodyError(f"failed to query bootstrap endpoint: {error}") from error
            if answer.status != 200:
                raise BadBodyError(f"bootstrap endpoint returned status {answer.status}")
            said = object_of(answer.body, prefix="failed to parse bootstrap response: ") or {}
            ids = {int(rank): str(each["engine_id"]) for rank, each in said.items() if "engine_id" in each}
            if not ids:
                raise BadBodyError("engine_id not found in bootstrap response")
            self._engine_ids[address] = ids
        return self._engine_ids[address]

    async def _offloading(
        self, call: Call, prefill: str, source: Json | None, decode: Decode
    ) -> web.StreamResponse:
        body = object_of(call.body) or {}
        transfer = str(uuid.uuid4())
        there: Json = {"remote_decoder": {"kv_request_id": transfer}}
        if source is not None:
            there["remote_kv_source"] = source
        here = {
            "remote_prefiller": {
                "kv_request_id": transfer,
                "remote_host": _host(prefill),
                "remote_port": self.pull_port(prefill.rpartition(":")[2]),
            }
        }
        self._detach(prefill, call.with_body(encoded(short_prefill(body, there))))
        return await decode(call.with_body(encoded(with_transfer(body, here))), None)

    def pull_port(self, port: str) -> int:
        """Return the port for pulls of the engine whose requests go to `port`: ranks have one each."""
        rank = int(port) - self._settings.port if port.isdigit() else 0
        return self._settings.pull_port + (rank if 0 <= rank < self._settings.ranks else 0)

    async def _shared_storage(self, call: Call, prefill: str, decode: Decode) -> web.StreamResponse:
        body = object_of(call.body, prefix="invalid JSON: ")
        if body is None:
            raise drop(call.request)
        if _THRESHOLD in body and (answer := await self._tried(call)) is not None:
            return answer
        try:
            prefilled = await self._legs.whole(prefill, call.with_body(encoded(shared_storage_prefill(body))))
        except NoAnswerError as error:
            return prefill_failed(error)
        if not prefilled.is_good:
            return _bare(prefilled)
        return await decode(call.with_body(encoded({**body, _THRESHOLD: 0})), None)

    async def _tried(self, call: Call) -> web.Response | None:
        """Return the answer of the decode engine alone, None if it has too little of the prompt cached."""
        try:
            answer = await self._legs.whole(f"127.0.0.1:{self._settings.engine_port}", call)
        except NoAnswerError as error:
            return decode_failed(error)
        if not answer.is_good:
            return _bare(answer)
        try:
            said = object_of(answer.body) or {}
        except BadBodyError as error:
            return failed(500, str(error))
        choices: Any = said.get("choices") or [{}]
        return None if choices[0].get("finish_reason") == "cache_threshold" else answer.passed_on()

    def _detach(self, prefill: str, leg: Call) -> None:
        """Send a prefill leg whose answer nobody waits for, and which goes on if the client leaves."""
        task = asyncio.create_task(self._discarded(prefill, leg))
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)

    async def _discarded(self, prefill: str, leg: Call) -> None:
        await asyncio.gather(self._legs.whole(prefill, leg), return_exceptions=True)


def _bare(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type="text/plain", charset="utf-8")


def _host(target: str) -> str:
    return urlsplit(f"//{target}").hostname or ""
