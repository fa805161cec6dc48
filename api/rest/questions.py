"""Routes of questions, whose bodies may be long: these are decoded and checked in a thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from ...tokenization.errors import NotReadError
from ...tokenization.reading import Reader
from ...tokenization.requests.cost import LIGHT_BYTES, decoding_cost
from .errors import UnavailableError
from .metrics import RestMetrics


def question_route(reader: Reader, metrics: RestMetrics) -> type[APIRoute]:
    """Return the class of routes that read long bodies in `reader`'s thread. Short ones are left to the library.

    Args:
        reader: the thread; its limit of cost applies.
        metrics: counts refusals.
    """

    class QuestionRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            usual = super().get_route_handler()
            (question,) = self.dependant.body_params
            model = cast("type[BaseModel]", question.field_info.annotation)
            decode = partial(_decoded, model, max_cost=reader.max_cost)
            answers: TypeAdapter[object] = TypeAdapter(self.response_model)

            async def handle(request: Request) -> Response:
                body = await request.body()
                if len(body) <= LIGHT_BYTES or "json" not in request.headers.get("content-type", ""):
                    return await usual(request)
                try:
                    asked = await reader.run(partial(decode, body), n_bytes=len(body))
                except NotReadError as error:
                    metrics.refused("not_read")
                    raise UnavailableError(str(error)) from error
                except HTTPException:
                    metrics.refused("too_complex")
                    raise
                arguments: dict[str, object] = {question.name: asked}
                if self.dependant.request_param_name is not None:
                    arguments[self.dependant.request_param_name] = request
                answer = await self.endpoint(**arguments)
                return Response(answers.dump_json(answer, by_alias=True), media_type="application/json")

            return handle

    return QuestionRoute


def _decoded(model: type[BaseModel], body: bytes, *, max_cost: int) -> BaseModel:
    """Decode and check a body.

    Raises:
        HTTPException: it costs too much.
        RequestValidationError: it is no JSON, or does not fit.
    """
    cost = decoding_cost(body)
    if cost > max_cost:
        raise HTTPException(
            413, f"reading the body costs {cost}, and tokenization.maxReadingCost is {max_cost}; ask in parts"
        )
    try:
        return model.model_validate(msgspec.json.decode(body))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        invalid = {"type": "json_invalid", "loc": ("body",), "msg": "JSON decode error"}
        raise RequestValidationError([invalid]) from None
