"""The OpenAPI description beyond routes and models: an example of every call, and the calls that need the token."""

from __future__ import annotations

from threading import Lock
from typing import Any, cast

from fastapi import FastAPI

from .auth import Tokens
from .examples import EXAMPLES
from .limits import QUESTIONS
from .question_bodies import JSON, MSGPACK

Description = dict[str, Any]

_SCHEME = {"bearer": {"type": "http", "scheme": "bearer", "description": "server.auth"}}


def describe(app: FastAPI, tokens: Tokens) -> None:
    """Complete the OpenAPI description of `app`, which is made on the first request for it; from any thread."""
    described, turn = app.openapi, Lock()

    def openapi() -> Description:
        with turn:
            if app.openapi_schema is None:
                _complete(described(), tokens)
        return cast("Description", app.openapi_schema)

    app.openapi = openapi  # type: ignore[method-assign]  # the way the library documents


def _complete(description: Description, tokens: Tokens) -> None:
    paths: dict[str, dict[str, Description]] = description["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            _correct_streams(operation)
            _give_examples(operation, method, path)
            _offer_message_pack(operation, path)
            if tokens.wanted(method.upper(), path):
                operation["security"] = [{"bearer": []}]
                operation["responses"]["401"] = _ANSWER_401
    if tokens:
        description["components"]["securitySchemes"] = _SCHEME


_ANSWER_401: Description = {
    "description": "the bearer token is missing or wrong",
    "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}},
}


def _correct_streams(operation: Description) -> None:
    """Correct the library's description of server-sent events, which it declares as a string too."""
    for answer in operation["responses"].values():
        for kind, media in answer.get("content", {}).items():
            if kind == "text/event-stream":
                media["schema"].pop("type", None)


def _offer_message_pack(operation: Description, path: str) -> None:
    """Offer the body of a question in MessagePack, whose schema is that of JSON but for binary."""
    if path in QUESTIONS:
        body = operation["requestBody"]
        body["content"][MSGPACK] = dict(body["content"][JSON])
        body["description"] = (
            "In MessagePack a list of integers may be binary, little endian: token ids of 4 bytes, hashes and keys of 8."
        )


def _give_examples(operation: Description, method: str, path: str) -> None:
    example = EXAMPLES.get((method, path))
    if example is None:
        return
    for name, value in example.parameters.items():
        next(each for each in operation["parameters"] if each["name"] == name)["example"] = value
    if example.body is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = example.body
    good = next(code for code in operation["responses"] if code.startswith("2"))
    media = operation["responses"][good].setdefault("content", {})
    kind = "text/plain" if isinstance(example.answer, str) else next(iter(media), "application/json")
    media.setdefault(kind, {})["example"] = example.answer
