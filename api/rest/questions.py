"""The door of questions, whose bodies may be long: lists of integers are read without an object for each, others in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...tokenization.errors import NotReadError
from ...tokenization.reading import Reader
from ...tokenization.requests.cost import LIGHT_BYTES, MAX_LIGHT_BYTES
from .errors import ANSWERED, UnavailableError, answer_to
from .metrics import RestMetrics
from .question_bodies import JSON, MSGPACK, QuestionBodies


def _never(_asked: object) -> None:
    """Answer nothing at once."""


@dataclass(frozen=True, slots=True)
class Question:
    """A POST that changes nothing.

    Attributes:
        model: of its body.
        answer: returns the answer to a body in JSON, from the model and the body's length.
        at_once: returns the same without waiting for anything, from the model; None if that is not possible.
    """

    model: type[BaseModel]
    answer: Callable[[Any, int], Awaitable[bytes]]
    at_once: Callable[[Any], bytes | None] = _never


class QuestionDoor:
    """Answers questions before the library comes to them, which gets short bodies that are unusual or invalid.

    Args:
        app: the library.
        questions: path -> question.
        reader: thread for bodies that take long to read; its limit of cost applies.
        metrics: counts refusals.
    """

    def __init__(
        self, app: ASGIApp, *, questions: Mapping[str, Question], reader: Reader, metrics: RestMetrics
    ) -> None:
        self._app, self._reader, self._metrics = app, reader, metrics
        self._questions = {
            path: (each, QuestionBodies(each.model, max_cost=reader.max_cost))
            for path, each in questions.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        found = self._questions.get(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        question, bodies = found
        message = await receive()
        body: bytes = message.get("body", b"")
        try:
            asked = await self._read(bodies, body, Headers(scope=scope).get("content-type", ""))
            response = (
                Response(await question.answer(asked, len(body)), media_type=JSON)
                if asked is not None
                else None
            )
        except ANSWERED as error:
            response = answer_to(error)
        if response is None:
            await self._app(scope, _again(message, receive), send)
        else:
            await response(scope, receive, send)

    def at_once(self, scope: Scope, body: bytes | bytearray) -> bytes | None:
        """Return the answer to a whole question that is valid, and short or full of integers; otherwise None.

        Raises:
            Exception: any of `ANSWERED`, with which the same call of the application ends.
        """
        found = self._questions.get(scope["path"]) if scope["method"] == "POST" else None
        if found is None or len(body) > MAX_LIGHT_BYTES:
            return None
        question, bodies = found
        kind = _kind(Headers(scope=scope).get("content-type", ""))
        if kind == MSGPACK:
            asked: BaseModel | None = bodies.unpacked(body)
        else:
            asked = bodies.at_once(body) if kind == JSON else None
        return question.at_once(asked) if asked is not None else None

    async def _read(
        self, bodies: QuestionBodies[BaseModel], body: bytes, content_type: str
    ) -> BaseModel | None:
        """Return the question, None if the library is to read it."""
        kind = _kind(content_type)
        if kind == MSGPACK:
            return await self._in_turn(bodies.unpacked, body, at_once=MAX_LIGHT_BYTES)
        if kind == JSON and len(body) <= MAX_LIGHT_BYTES and (asked := bodies.at_once(body)) is not None:
            return asked
        if len(body) <= LIGHT_BYTES or "json" not in content_type:
            return None
        return await self._in_turn(bodies.decoded, body, at_once=LIGHT_BYTES)

    async def _in_turn(self, read: Callable[[bytes], BaseModel], body: bytes, *, at_once: int) -> BaseModel:
        """Read a body, in the thread if it has more than `at_once` bytes."""
        try:
            if len(body) <= at_once:
                return read(body)
            return await self._reader.run(partial(read, body), n_bytes=len(body))
        except NotReadError as error:
            self._metrics.refused("not_read")
            raise UnavailableError(str(error)) from error
        except HTTPException:
            self._metrics.refused("too_complex")
            raise


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _again(message: Message, receive: Receive) -> Receive:
    """Return a `receive` that returns a message once more first."""
    messages = [message]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received
