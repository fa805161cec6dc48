"""Answers of a sidecar's own, when an engine or a client failed."""

from __future__ import annotations

import json

from aiohttp import web

from support.sidecar.json_values import Json, as_object, is_object
from support.sidecar.legs import BrokenAnswerError, NoAnswerError

_KINDS = {
    400: "BadRequestError",
    500: "InternalServerError",
    502: "BadGateway",
    503: "ServiceUnavailable",
}


class BadBodyError(Exception):
    """A body is not what a leg needs; the client gets its text with `status`."""

    def __init__(self, text: str, *, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


def failed(status: int, text: str) -> web.Response:
    """Return an answer in the form of the engine's errors, as plain text like the reference's."""
    error = {"object": "error", "message": text, "type": _KINDS[status], "param": "", "code": status}
    return web.Response(status=status, text=json.dumps(error), content_type="text/plain", charset="utf-8")


def decode_failed(error: NoAnswerError) -> web.Response:
    """Return the answer if the decode engine gave none."""
    if error.is_refused:
        return failed(503, "The decode node is not ready. Please check that the engine is running.")
    return failed(502, str(error))


def prefill_failed(error: NoAnswerError) -> web.Response:
    """Return the answer if the prefill engine gave none: without a body, unless it has no address."""
    return failed(502, str(error)) if error.is_address else web.Response(status=502)


def drop(request: web.Request) -> BrokenAnswerError:
    """Close the client's connection without an answer, and return what to raise."""
    if request.transport is not None:
        request.transport.abort()
    return BrokenAnswerError("the connection to the client was closed")


def object_of(body: bytes, *, prefix: str = "") -> Json | None:
    """Return a body that is a JSON object, None if it is null.

    Raises:
        BadBodyError: it is neither; its text begins with `prefix`.
    """
    try:
        decoded = json.loads(body.decode("utf-8", "replace"))
    except ValueError as error:
        raise BadBodyError(f"{prefix}{error}") from error
    if decoded is not None and not is_object(decoded):
        raise BadBodyError(f"{prefix}found a {type(decoded).__name__}, expected an object")
    return None if decoded is None else as_object(decoded)


def encoded(body: object) -> bytes:
    """Return JSON as the legs carry it: keys sorted."""
    return json.dumps(body, sort_keys=True).encode()
