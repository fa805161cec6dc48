"""`/metrics` that the cluster decides about: over real HTTP, with the fake API server."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from kvatlas.api.rest.app import metrics_app
from kvatlas.api.rest.listener import HttpListener
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.api.rest.reviewed import MetricsReviews
from kvatlas.configs.listeners import AuthConfig
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.reviews import CACHE_S, MAX_CACHED, REFUSED_S, Reviews, Verdict
from support.api_server import ApiServerDouble
from support.api_watch import Json
from support.cluster import access
from support.fleets import make_config

NAME = "system:serviceaccount:default:reader"
READER: Json = {"username": NAME, "uid": "u", "groups": ["a"], "extra": {"x": ["y"]}}


@pytest.fixture
async def double() -> AsyncIterator[ApiServerDouble]:
    server = ApiServerDouble()
    await server.start()
    server.rights.users = {"good": READER, "other": {"username": "other"}}
    server.rights.readers = {NAME}
    yield server
    await server.stop()


@asynccontextmanager
async def metrics_listener(
    folder: Path, environment: dict[str, str]
) -> AsyncGenerator[tuple[str, CollectorRegistry]]:
    """Address of `/metrics`, and the metrics shown there."""
    registry = CollectorRegistry()
    counted = RestMetrics(registry)
    reviews = MetricsReviews(make_config(endpoints={"static": []}), environment, counted)
    listener = HttpListener(
        "server.metrics", metrics_app(registry, AuthConfig(metrics_review=True), counted, reviews)
    )
    await reviews.start()
    port = await listener.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}/metrics", registry
    finally:
        await listener.stop()
        await reviews.stop()


def environment(double: ApiServerDouble, folder: Path) -> dict[str, str]:
    access(double, folder)
    return {"KUBECONFIG": str(folder / "kubeconfig")}


async def status(url: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status


async def test_callers_are_admitted_as_the_cluster_says(double: ApiServerDouble, tmp_path: Path) -> None:
    async with metrics_listener(tmp_path, environment(double, tmp_path)) as (url, registry):
        found = [await status(url, token) for token in (None, "wrong", "other", "good")]
    assert found == [401, 401, 403, 200]
    assert double.rights.seen[-1] == {
        "user": NAME, "uid": "u", "groups": ["a"], "extra": {"x": ["y"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }  # fmt: skip
    refusals = {
        reason: registry.get_sample_value("kvatlas_rest_refusals_total", {"reason": reason})
        for reason in ("unauthorized", "forbidden")
    }
    assert refusals == {"unauthorized": 2, "forbidden": 1}


async def test_nobody_is_admitted_and_one_warning_says_so_when_reviews_are_not_allowed(
    double: ApiServerDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    double.rights.rules = []
    with caplog.at_level(logging.WARNING):
        async with metrics_listener(tmp_path, environment(double, tmp_path)) as (url, _):
            found = [await status(url, token) for token in ("good", "good")]
    assert found == [401, 401]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "tokenreviews" in warning
    assert "--metrics-endpoint-auth=false" in warning
    assert "good" not in warning


async def test_nobody_is_admitted_without_an_api_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with metrics_listener(tmp_path, {"HOME": str(tmp_path)}) as (url, _):
        assert await status(url, "good") == 401
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no API server" in caplog.text


async def test_caller_may_come_again_when_the_api_server_does_not_answer(
    double: ApiServerDouble, tmp_path: Path
) -> None:
    async with metrics_listener(tmp_path, environment(double, tmp_path)) as (url, registry):
        await double.stop()
        assert await status(url, "good") == 503
        await double.start()
        assert await status(url, "good") == 200
    assert registry.get_sample_value("kvatlas_rest_refusals_total", {"reason": "not_reviewed"}) == 1


@asynccontextmanager
async def reviews(double: ApiServerDouble) -> AsyncGenerator[tuple[Reviews, list[float]]]:
    """The reviews of a client, and the time on its clock."""
    now = [1000.0]
    server = ApiServer(double.access, clock=lambda: now[0])
    await server.start()
    try:
        yield Reviews(server, clock=lambda: now[0]), now
    finally:
        await server.stop()


async def test_answers_are_cached_for_a_short_time(double: ApiServerDouble) -> None:
    async with reviews(double) as (asked, now):
        first = [await asked.may_read(token, "/metrics") for token in ("good", "good", "other", "other")]
        n_first = double.rights.n_reviews
        double.rights.readers = {"other"}
        now[0] += REFUSED_S
        second = [await asked.may_read(token, "/metrics") for token in ("good", "other")]
        now[0] += CACHE_S - REFUSED_S
        third = await asked.may_read("good", "/metrics")
    assert first == [Verdict.ALLOWED, Verdict.ALLOWED, Verdict.FORBIDDEN, Verdict.FORBIDDEN]
    assert n_first == 4
    assert second == [Verdict.ALLOWED, Verdict.ALLOWED]
    assert third is Verdict.FORBIDDEN


async def test_cache_is_bounded_when_callers_make_tokens_up(double: ApiServerDouble) -> None:
    async with reviews(double) as (asked, _):
        await asked.may_read("first", "/metrics")
        for number in range(MAX_CACHED):
            await asked.may_read(f"made-up-{number}", "/metrics")
        n_before = double.rights.n_reviews
        await asked.may_read(f"made-up-{MAX_CACHED - 1}", "/metrics")
        n_kept = double.rights.n_reviews
        await asked.may_read("first", "/metrics")
    assert (n_kept, double.rights.n_reviews) == (n_before, n_before + 1)
