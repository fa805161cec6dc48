"""`/openapi.json`, and `/docs`: the OpenAPI description as a page without scripts, so that no other code runs in the dashboard's origin."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from .ui import PAGE_HEADERS

PAGE = "/docs"

Description = dict[str, Any]


def reference_routes(described: Callable[[], Description]) -> APIRouter:
    """Return the routes of `/docs` and `/openapi.json`.

    Args:
        described: returns the OpenAPI description; called in a thread, since the first call takes 0.6 s.
    """
    router = APIRouter(include_in_schema=False)
    pages: list[str] = []

    @router.get(PAGE)
    async def page() -> Response:
        if not pages:
            pages.append(await asyncio.to_thread(lambda: "".join(_page(described()))))
        return Response(pages[0], media_type="text/html; charset=utf-8", headers=PAGE_HEADERS)

    @router.get("/openapi.json")
    async def description() -> Response:
        return await asyncio.to_thread(lambda: JSONResponse(described()))

    return router


def _page(description: Description) -> Iterator[str]:
    calls = [
        (method.upper(), path, operation)
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    ]
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>kvatlas REST API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="ui/icon.svg" type="image/svg+xml"><link rel="stylesheet" href="ui/base.css">'
        '<link rel="stylesheet" href="ui/reference.css"></head><body>'
        '<header class="top"><h1>kvatlas REST API</h1><nav><a href="openapi.json">openapi.json</a></nav></header>'
        "<main>"
    )
    yield '<section class="panel"><ul class="calls">'
    for method, path, operation in calls:
        yield f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a> {_text(operation, "summary")}</li>'
    yield "</ul></section>"
    for method, path, operation in calls:
        yield f'<section class="panel" id="{_anchor(method, path)}"><h2><code>{method} {escape(path)}</code></h2>'
        yield from _call(operation, description["components"]["schemas"])
        yield "</section>"
    yield "</main></body></html>"


def _call(operation: Description, schemas: Description) -> Iterator[str]:
    yield f"<p>{_text(operation, 'description')}</p>"
    if operation.get("security"):
        yield "<p>Needs the token.</p>"
    rows = [
        (each["name"], each["schema"], each.get("required", False), each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    yield from _table("Parameters", rows)
    for media in operation.get("requestBody", {}).get("content", {}).values():
        yield from _media("Body", media, schemas)
    for code, answer in operation["responses"].items():
        yield f"<h3>{escape(code)}: {_text(answer, 'description')}</h3>"
        if code.startswith("2"):
            for media in answer.get("content", {}).values():
                yield from _media("Fields", media, schemas)


def _media(title: str, media: Description, schemas: Description) -> Iterator[str]:
    schema: Description = media.get("schema", {})
    schema = schema.get("items", schema)  # of a list: the fields of its entries
    named: Description = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    required = named.get("required", ())
    rows = [
        (name, each, name in required, each.get("description", ""))
        for name, each in named.get("properties", {}).items()
    ]
    yield from _table(title, rows)
    if "example" in media:
        example = media["example"]
        shown = example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
        yield f"<pre>{escape(shown)}</pre>"


def _table(title: str, rows: list[tuple[str, Description, bool, str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"<table><thead><tr><th>{title}</th><th>type</th><th>required</th><th>meaning</th></tr></thead><tbody>"
    for name, schema, is_required, meaning in rows:
        yield (
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(schema))}</td>"
            f"<td>{'yes' if is_required else ''}</td><td>{escape(meaning)}</td></tr>"
        )
    yield "</tbody></table>"


def _type(schema: Description) -> str:
    """Return a short name of a schema's type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _text(holder: Description, key: str) -> str:
    return escape(holder.get(key, ""))


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path}", quote=True)
