"""`/ui`: the dashboard. Its files hold no data; the page fetches it, with the token if one is needed."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from fastapi import APIRouter, Request, Response

from .errors import NotFoundError

PAGE = "/ui"

_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: no other origin, nothing inline, no frames."""

PAGE_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_page(path: str) -> bool:
    """Return whether a path is one of the dashboard's own files, which need no token."""
    return path == PAGE or path.startswith(f"{PAGE}/")


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    tag: str


def ui_routes() -> APIRouter:
    """Return the routes of `/ui` and the files of the page."""
    router = APIRouter(include_in_schema=False)
    files = _files()

    @router.get(PAGE)
    async def page(request: Request) -> Response:
        return _answer(files["index.html"], request)

    @router.get(PAGE + "/{name}")
    async def file(name: str, request: Request) -> Response:
        found = files.get(name)
        if found is None:
            raise NotFoundError(f"the dashboard has no file {name[:80]!r}; it is at {PAGE}")
        return _answer(found, request)

    return router


def _files() -> Mapping[str, _File]:
    folder = importlib.resources.files("kvatlas.api.ui")
    found = ((each.name, _MEDIA.get(PurePath(each.name).suffix)) for each in folder.iterdir())
    return {name: _file((folder / name).read_bytes(), media) for name, media in found if media is not None}


def _file(body: bytes, media_type: str) -> _File:
    return _File(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:16]}"')


def _answer(file: _File, request: Request) -> Response:
    headers = PAGE_HEADERS | {"ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
