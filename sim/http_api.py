"""The HTTP API of a simulated server: the OpenAI API and the operational paths of vLLM."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

import msgspec
from aiohttp import web

from .engine import Engine
from .errors import KvLoadError, RequestRefusedError
from .faults import NO_HTTP_FAULTS, HttpFaults
from .kv_transfer import KvTransferParams, kept_params
from .media import MediaEncoder, ec_transfer_params
from .metrics import EngineCollector
from .model_text import ModelText
from .openai import GenerateBody, Json, ResponseFormat, error_body, parse_generate, usage
from .request import Request
from .sequence import Lora

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
SERVED_BY = "x-served-by"

DEFAULT_MAX_TOKENS = 64
"""Length of a reply if the request sets no limit; a real model would end it by itself."""

MAX_BODY_BYTES = 64 * 2**20

_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_INTERNAL_ERROR = RequestRefusedError("Internal server error", status=500, kind="InternalServerError")
"""Response to a request whose KV state did not arrive, as of vLLM with `kv_load_failure_policy: fail`."""

_encode = msgspec.json.Encoder().encode
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpApi:
    """Request handlers of one server.

    Args:
        engine: generates the replies.
        text: the model's tokenizer.
        collector: renders `/metrics`.
        name: sent with each response as `x-served-by`.
        model: served name of the base model.
        loras: adapters, served under their own names.
        context_tokens: maximum length of prompt and reply together.
        faults: injected into completion requests.
        rng: random numbers for the faults.
        encoder: encodes the media of requests before anything else; None if that takes no time.
    """

    def __init__(
        self,
        engine: Engine,
        text: ModelText,
        collector: EngineCollector,
        *,
        name: str,
        model: str,
        loras: Iterable[Lora],
        context_tokens: int,
        faults: HttpFaults = NO_HTTP_FAULTS,
        rng: Callable[[], float] = random.random,
        encoder: MediaEncoder | None = None,
    ) -> None:
        self._encoder = encoder
        self._faults, self._rng = faults, rng
        self._engine = engine
        self._text = text
        self._collector = collector
        self._name = name
        self._model = model
        self._loras = {lora.name: lora for lora in loras}
        self._context_tokens = context_tokens
        self._started_at = int(time.time())

    def application(self) -> web.Application:
        """Build the aiohttp application."""
        app = web.Application(middlewares=[_refusals], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(self._sign)
        app.router.add_post(COMPLETIONS_PATH, self._generate)
        app.router.add_post(CHAT_PATH, self._generate)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post(f"{COMPLETIONS_PATH}/render", self._render)
        app.router.add_post(f"{CHAT_PATH}/render", self._render)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _sign(self, _request: web.Request, response: web.StreamResponse) -> None:
        response.headers[SERVED_BY] = self._name

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        await self._inject_faults(request)
        fields = parse_generate(body)
        lora = self._adapter(fields.model)
        prompt = self._text.tokenize(request.path, body)
        items = await self._encoder.encode(request.path, body) if self._encoder is not None else ()
        output = self._text.reply(prompt, self._reply_tokens(fields, len(prompt)))
        work = Request(uuid.uuid4().hex[:16], prompt, output, lora=lora, salt=fields.cache_salt or None)
        self._transfer(work, fields.kv_transfer_params)
        form = ResponseFormat(
            chat=request.path == CHAT_PATH,
            request_id=work.request_id,
            model=fields.model or self._model,
            created=int(time.time()),
            finish_reason="length" if fields.reply_limit else "stop",
        )
        if self._encoder is not None and self._encoder.is_alone:
            return self._encoded(request, work, form, items)
        if not fields.stream:
            return await self._answer(work, form)
        options = fields.stream_options
        return await self._stream(
            request, work, form, with_usage=options is not None and options.include_usage
        )

    async def _inject_faults(self, request: web.Request) -> None:
        """Inject the configured faults into a request.

        Raises:
            RequestRefusedError: the response has status 503.
            ConnectionResetError: the connection was closed.
        """
        faults = self._faults
        if self._happens(faults.refuse):
            raise RequestRefusedError("The server is overloaded.", status=503, kind="ServiceUnavailableError")
        if self._happens(faults.abort) and request.transport is not None:
            request.transport.abort()
            raise ConnectionResetError
        if self._happens(faults.slow):
            await asyncio.sleep(faults.slow_s)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng() < chance

    async def _answer(self, work: Request, form: ResponseFormat) -> web.Response:
        try:
            text = "".join([piece async for piece, _last in self._pieces(work)])
        except KvLoadError as error:
            raise _INTERNAL_ERROR from error
        params = kept_params(work, self._engine.scheduler.connector)
        return _json(form.whole(text, _usage(work), kv_transfer_params=params))

    def _encoded(
        self, request: web.Request, work: Request, form: ResponseFormat, items: tuple[int, ...]
    ) -> web.Response:
        """Return where the encoded media are, as an encode server does after its only stage."""
        params = ec_transfer_params(items, host=request.url.host or "")
        return _json(form.whole("", _usage(work), ec_transfer_params=params))

    async def _stream(
        self, request: web.Request, work: Request, form: ResponseFormat, *, with_usage: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            async for event in self._events(work, form):
                await response.write(_event(event))
            if with_usage:
                await response.write(_event(form.closing(_usage(work))))
        except KvLoadError:
            await response.write(_event(error_body(_INTERNAL_ERROR)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _events(self, work: Request, form: ResponseFormat) -> AsyncGenerator[Json, None]:
        """Yield the body of each event with text."""
        opening = form.opening()
        async with aclosing(self._pieces(work)) as pieces:
            async for piece, last in pieces:
                if opening is not None:
                    yield opening
                    opening = None
                yield form.piece(piece, last=last)

    def _transfer(self, work: Request, params: KvTransferParams | None) -> None:
        """Let a request keep its KV state, or pull it from another server; engines without a connector do neither."""
        if params is not None and self._engine.scheduler.connector is not None:
            work.keeps_kv = bool(params.do_remote_decode)
            work.remote = params.remote

    async def _pieces(self, work: Request) -> AsyncGenerator[tuple[str, bool], None]:
        """Yield the text of each token, and whether it is the last."""
        texts = self._text.pieces(work.output)
        async with aclosing(self._engine.generate(work)) as tokens:
            async for generated in tokens:
                yield next(texts), generated.finished

    def _adapter(self, model: str | None) -> Lora | None:
        if model is None or model == self._model:
            return None
        if model not in self._loras:
            raise RequestRefusedError(
                f"The model `{model}` does not exist.", status=404, kind="NotFoundError", param="model"
            )
        return self._loras[model]

    def _reply_tokens(self, fields: GenerateBody, n_prompt: int) -> int:
        if not n_prompt:
            raise RequestRefusedError("The decoder prompt cannot be empty", param="prompt")
        asked = fields.reply_limit
        room = self._context_tokens - n_prompt
        if room < (asked or 1):
            raise RequestRefusedError(
                f"This model's maximum context length is {self._context_tokens} tokens. However, you requested "
                f"{asked or 1} output tokens and your prompt contains {n_prompt} input tokens.",
                param="input_tokens",
            )
        return asked or min(room, DEFAULT_MAX_TOKENS)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.read()
        fields = _object(body)
        path = CHAT_PATH if "messages" in fields else COMPLETIONS_PATH
        tokens: array[int] = self._text.tokenize(path, _encode({"model": self._model, **fields}))
        return _json(
            {
                "count": len(tokens),
                "max_model_len": self._context_tokens,
                "tokens": list(tokens),
                "token_strs": None,
            }
        )

    async def _render(self, request: web.Request) -> web.Response:
        """Return the token ids of a body, like vLLM with `--enable-scale-out`, as for `/inference/v1/generate`."""
        body = await request.read()
        self._adapter(parse_generate(body).model)
        path = request.path.removesuffix("/render")
        rendered: Json = {"token_ids": list(self._text.tokenize(path, body)), "features": None}
        return _json(rendered if path == CHAT_PATH else [rendered])

    async def _models(self, _request: web.Request) -> web.Response:
        cards: list[Json] = [
            {
                "id": name,
                "object": "model",
                "created": self._started_at,
                "owned_by": "vllm",
                "root": name,
                "parent": None if name == self._model else self._model,
                "max_model_len": self._context_tokens if name == self._model else None,
            }
            for name in (self._model, *self._loras)
        ]
        return _json({"object": "list", "data": cards})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        self._engine.scheduler.reset_cache(cpu=request.query.get("reset_external") == "true")
        return web.Response()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.running else 503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._collector.render(), headers={"Content-Type": _METRICS_TYPE})


@web.middleware
async def _refusals(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRefusedError as error:
        return _json(error_body(error), status=error.status)


def _object(body: bytes) -> Json:
    try:
        return msgspec.json.decode(body, type=Json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefusedError(f"JSON decode error: {error}") from error


def _usage(work: Request) -> Json:
    return usage(
        prompt_tokens=len(work.prompt),
        completion_tokens=work.n_generated,
        cached_tokens=work.cached_tokens or 0,
    )


def _json(body: Json | list[Json], *, status: int = 200) -> web.Response:
    return web.Response(body=_encode(body), status=status, content_type="application/json")


def _event(body: Json) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"
