"""The bearer token, without a running process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kvatlas.api.errors import AuthError
from kvatlas.api.rest.auth import BearerAuth, Tokens, needs_token
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.api.tokens import TokenFile
from kvatlas.configs.listeners import AuthConfig


@pytest.mark.parametrize(
    ("method", "path", "changes"),
    [
        pytest.param("POST", "/register", True, id="register"),
        pytest.param("POST", "/unregister", True, id="unregister"),
        pytest.param("PUT", "/v1/weights", True, id="weights"),
        pytest.param("POST", "/v1/endpoints/a/reset", True, id="reset"),
        pytest.param("DELETE", "/v1/unheard-of", True, id="what_may_come"),
        pytest.param("POST", "/query/", True, id="nearly_a_question"),
        pytest.param("PUT", "/ui/app.js", True, id="no_reading_of_the_page"),
        pytest.param("POST", "/query", False, id="query"),
        pytest.param("POST", "/query_by_hash", False, id="query_by_hash"),
        pytest.param("POST", "/v1/score", False, id="score"),
        pytest.param("POST", "/v1/weights/preview", False, id="preview"),
        pytest.param("GET", "/v1/decisions", False, id="decisions"),
        pytest.param("GET", "/metrics", False, id="metrics"),
        pytest.param("GET", "/docs", False, id="docs"),
        pytest.param("GET", "/v1/live", False, id="live"),
    ],
)
def test_token_is_for_calls_that_change_something(method: str, path: str, changes: bool) -> None:
    assert needs_token(method, path, protect_reads=False) == changes
    assert needs_token(method, path, protect_reads=True)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/ui", "/ui/app.js"])
def test_probes_and_the_page_without_data_never_need_a_token(path: str) -> None:
    assert not needs_token("GET", path, protect_reads=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param("", "must hold one token", id="empty"),
        pytest.param("two words\n", "must hold one token", id="several"),
        pytest.param("\ufeffsecret\n", "no byte order mark", id="byte_order_mark"),
        pytest.param("schl\u00fcssel\n", "must hold visible ASCII characters", id="other_letters"),
        pytest.param("se\0cret\n", "must hold visible ASCII characters", id="control_character"),
    ],
)
def test_start_is_refused_without_a_token_in_the_file(
    content: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    with pytest.raises(AuthError, match=rf"server\.auth\.bearerTokenFile.*{problem}"):
        TokenFile(file)


def test_changed_file_applies_at_once_and_nobody_is_admitted_while_it_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    token = TokenFile(file)
    assert (token.admits(b"first"), token.admits(b"firs"), token.admits(b"")) == (True, False, False)

    with caplog.at_level(logging.INFO):
        file.write_text("the-second\n")
        assert (token.admits(b"first"), token.admits(b"the-second")) == (False, True)
        file.unlink()
        assert (token.admits(b"the-second"), token.admits(b"")) == (False, False)
        file.write_text("third")
        assert token.admits(b"third")

    assert "nobody is admitted until it is mended" in caplog.text
    assert not {"first", "the-second", "third"} & set(caplog.text.split())


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        pytest.param(None, 'Bearer realm="kvatlas"', id="none"),
        pytest.param("Basic c2VjcmV0", 'Bearer realm="kvatlas"', id="other_scheme"),
        pytest.param("Bearer", 'Bearer realm="kvatlas"', id="no_token"),
        pytest.param("Bearer other", 'Bearer realm="kvatlas", error="invalid_token"', id="wrong"),
        pytest.param("Bearer secret more", 'Bearer realm="kvatlas", error="invalid_token"', id="longer"),
        pytest.param("Bearer secret", None, id="right"),
        pytest.param("bearer  secret", None, id="scheme_in_lower_case"),
    ],
)
async def test_call_is_served_only_with_the_token(
    header: str | None, challenge: str | None, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    served: list[str] = []

    async def change(request: Request) -> PlainTextResponse:
        served.append(request.url.path)
        return PlainTextResponse("done")

    registry = CollectorRegistry()
    app = BearerAuth(
        Starlette(routes=[Route("/register", change, methods=["POST"])]),
        wanted=Tokens(AuthConfig(bearer_token_file=str(tmp_path / "token"))).wanted,
        metrics=RestMetrics(registry),
    )
    headers = {"authorization": header} if header is not None else {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answer = await client.post("/register", headers=headers)

    refused = registry.get_sample_value("kvatlas_rest_refusals_total", {"reason": "unauthorized"})
    if challenge is None:
        assert (answer.text, served, refused) == ("done", ["/register"], None)
        return
    assert (answer.status_code, answer.headers["www-authenticate"], served, refused) == (
        401, challenge, [], 1,
    )  # fmt: skip
    error = answer.json()["error"]
    assert (error["code"], "server.auth.bearerTokenFile" in error["message"]) == ("Unauthorized", True)
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("config", "change", "read", "metrics", "metrics_alone"),
    [
        pytest.param({}, [], [], [], [], id="nothing"),
        pytest.param({"bearerTokenFile": "b"}, ["b"], [], [], [], id="changes"),
        pytest.param({"bearerTokenFile": "b", "protectReads": True}, ["b"], ["b"], ["b"], [], id="reads"),
        pytest.param({"metricsTokenFile": "m"}, [], [], ["m"], ["m"], id="metrics"),
        pytest.param(
            {"bearerTokenFile": "b", "metricsTokenFile": "m"}, ["b"], [], ["m", "b"], ["m", "b"], id="both"
        ),
        pytest.param(
            {"bearerTokenFile": "b", "protectReads": True, "metricsReview": True}, ["b"], ["b"], [], [],
            id="the_cluster_decides_about_metrics",
        ),
    ],
)  # fmt: skip
def test_each_token_admits_the_calls_of_its_setting(
    config: dict[str, Any],
    change: list[str],
    read: list[str],
    metrics: list[str],
    metrics_alone: list[str],
    tmp_path: Path,
) -> None:
    names = ("b", "m")
    for name in names:
        (tmp_path / name).write_text(name)
    files = {key: str(tmp_path / value) if value in names else value for key, value in config.items()}
    tokens = Tokens(msgspec.convert(files, AuthConfig))

    def admitted(wanted: list[TokenFile]) -> list[str]:
        return [name for token in wanted for name in names if token.admits(name.encode())]

    assert admitted(tokens.wanted("PUT", "/v1/weights")) == change
    assert admitted(tokens.wanted("GET", "/v1/index")) == read
    assert admitted(tokens.wanted("GET", "/metrics")) == metrics
    assert admitted(tokens.of_metrics) == metrics_alone
    assert bool(tokens) == bool(config)
