"""REST errors: `{"error": {"code", "message", "detail"}}` with their status, and nothing of the prompt."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ...events.errors import SocketLimitError
from ...fleet.errors import (
    AlreadyRegisteredError,
    ConfigRefusedError,
    NotRegisteredError,
    TooManyRegisteredError,
)
from ...tokenization.errors import NotReadError, RequestError
from ..errors import ApiError

log = logging.getLogger(__name__)


class BadRequestError(ApiError):
    """The request has an impossible value."""


class NotFoundError(ApiError):
    """There is no such name."""


class UnavailableError(ApiError):
    """The answer is not available now."""


_STATUS = {
    BadRequestError: HTTPStatus.BAD_REQUEST,
    RequestError: HTTPStatus.BAD_REQUEST,
    NotFoundError: HTTPStatus.NOT_FOUND,
    NotRegisteredError: HTTPStatus.NOT_FOUND,
    AlreadyRegisteredError: HTTPStatus.CONFLICT,
    ConfigRefusedError: HTTPStatus.CONFLICT,
    NotReadError: HTTPStatus.SERVICE_UNAVAILABLE,
    TooManyRegisteredError: HTTPStatus.SERVICE_UNAVAILABLE,
    SocketLimitError: HTTPStatus.SERVICE_UNAVAILABLE,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
}

_RENAMED = {413: "RequestEntityTooLarge", 422: "UnprocessableEntity"}
"""Phrases that differ between versions of Python."""

_MALFORMED = re.compile("^(JSON|MessagePack data) is malformed: ")
"""What the error's own beginning says already."""

ANSWERED: tuple[type[Exception], ...] = (*_STATUS, RequestValidationError, HTTPException)
"""Errors of a call, which its caller is told; every other one is a fault of kvatlas."""


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of `app` the same form."""
    for kind in ANSWERED:
        app.add_exception_handler(kind, _answered)
    app.add_exception_handler(Exception, unexpected)


def answer_to(error: Exception) -> JSONResponse:
    """Return the response to an error of `ANSWERED`."""
    match error:
        case RequestValidationError():
            return _invalid(error)
        case HTTPException(__cause__=UnicodeDecodeError() | RecursionError() as cause):
            return _invalid(unreadable(cause))  # the library has no words for a body that it cannot read
        case HTTPException():
            return error_response(error.status_code, error.detail, headers=error.headers)
        case _:
            status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
            return error_response(status, str(error))


def unreadable(error: Exception, form: Literal["JSON", "MessagePack"] = "JSON") -> RequestValidationError:
    """Return the error of a body that a decoder of this form refuses, with its reason, which repeats nothing of the body."""
    match error:
        case UnicodeDecodeError():
            problem = (
                f"not UTF-8: {error.reason} (byte {error.start}{'' if form == 'JSON' else ' of a text'})"
            )
        case RecursionError():
            problem = f"not {form} that can be read: nested too deeply"
        case _:
            problem = f"not {form}: {_MALFORMED.sub('', str(error))}"
    kind = "json_invalid" if form == "JSON" else "msgpack_invalid"
    return RequestValidationError([{"type": kind, "loc": ("body",), "msg": problem}])


def error_response(
    status: int, message: str, detail: object = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return an error response."""
    body = {"error": {"code": _code(status), "message": message, "detail": detail}}
    return JSONResponse(body, status_code=status, headers=headers)


def _code(status: int) -> str:
    """Return the status in words, the same in every version of Python: `NotFound`."""
    return _RENAMED.get(status) or HTTPStatus(status).phrase.replace(" ", "")


async def unexpected(request: Request, error: Exception) -> JSONResponse:
    """Log an error that is a fault of kvatlas, and return its response."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(
        HTTPStatus.INTERNAL_SERVER_ERROR, "kvatlas failed on this request; its log says more"
    )


async def _answered(_request: Request, error: Exception) -> JSONResponse:
    return answer_to(error)


def _invalid(error: RequestValidationError) -> JSONResponse:
    """Return the error of an invalid body: its fields, never their values, which may be prompts."""
    fields = [_field(each) for each in error.errors()]
    first = f"{fields[0]['field']}: {fields[0]['problem']}" if fields else "the body does not fit"
    return error_response(HTTPStatus.UNPROCESSABLE_ENTITY, first, fields[:20])


def _field(error: Mapping[str, Any]) -> dict[str, str]:
    place, problem = error["loc"][1:], error["msg"]
    if error["type"] == "json_invalid" and place:  # by the library, with a position for a field
        return {"field": "body", "problem": f"not JSON: {error['ctx']['error']} (character {place[0]})"}
    return {
        "field": ".".join(map(str, place)) or "body",
        "problem": problem.removeprefix("Value error, "),  # how pydantic begins with words of ours
    }
