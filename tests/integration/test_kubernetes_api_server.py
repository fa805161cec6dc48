"""Requests to an API server over real HTTP: their headers, and the outcome of each kind of failure."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
import trustme

from kvatlas.events.line_limit import MAX_LINES
from kvatlas.fleet.kubernetes.client import api_server
from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.backoff import Timing
from kvatlas.fleet.kubernetes.client.errors import Failure, RequestFailedError
from kvatlas.fleet.kubernetes.client.follower import Collection, Follower
from kvatlas.fleet.kubernetes.client.list_watch import ListWatch
from kvatlas.fleet.kubernetes.client.wire import Named
from support.api_server import ApiServerDouble
from support.waiting import until

PODS = "/api/v1/namespaces/default/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
FAST = Timing(first_delay_s=0.005, max_delay_s=0.02, healthy_s=0.1, short_watch_s=0.001)


@pytest.fixture
async def double() -> AsyncIterator[ApiServerDouble]:
    server = ApiServerDouble()
    await server.start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def asking(access: Access) -> AsyncGenerator[ApiServer]:
    client = ApiServer(access, clock=time.monotonic)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@contextlib.asynccontextmanager
async def following(
    double: ApiServerDouble, collection: Collection, *, timing: Timing = FAST
) -> AsyncGenerator[Follower[Named]]:
    async with asking(Access(double.url)) as client:
        copy = ListWatch(Named, timing=timing, rng=lambda: 0.5)
        follower = Follower(client, collection, copy, on_change=lambda: None, clock=time.monotonic)
        task = asyncio.create_task(follower.run())
        try:
            yield follower
        finally:
            task.cancel()
            await asyncio.wait([task])
    assert task.cancelled()


async def failure_of(client: ApiServer) -> Failure:
    with pytest.raises(RequestFailedError) as failed:
        await client.get(PODS, {})
    return failed.value.failure


async def test_request_is_sent_again_when_the_token_was_replaced(
    double: ApiServerDouble, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    double.bearer = "one"
    async with asking(Access(double.url, token=token)) as client:
        await client.get(PODS, {})
        double.bearer = "two"
        refused = await failure_of(client)
        assert (refused.status, "token" in refused.message) == (401, True)
        token.write_text("two")
        assert b"PodList" in await client.get(PODS, {})


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(
            {"forbidden": {PODS}},
            ("http_status", 403, None, "pods is forbidden: User cannot list; give the ServiceAccount a Role"),
            id="403",
        ),
        pytest.param({"not_served": {PODS}}, ("http_status", 404, None, "proxy before it"), id="core_404"),
        pytest.param(
            {"n_throttled": 1, "retry_after": "7"}, ("http_status", 429, 7.0, "Too Many Requests"), id="429"
        ),
        pytest.param(
            {"n_throttled": 1, "retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"},
            ("http_status", 429, None, "429"),
            id="date",
        ),
        pytest.param({"n_failing": 1}, ("http_status", 500, None, "etcdserver"), id="500"),
        pytest.param({"n_cut_lists": 1}, ("cut", None, None, "the connection broke"), id="cut"),
    ],
)
async def test_failure_has_the_cause_when_the_server_refuses(
    double: ApiServerDouble, fault: dict[str, object], expected: tuple[str, int | None, float | None, str]
) -> None:
    for name, value in fault.items():
        setattr(double.faults, name, value)
    async with asking(Access(double.url)) as client:
        failure = await failure_of(client)
    reason, status, wait_s, text = expected
    assert (failure.reason, failure.status, failure.retry_after_s) == (reason, status, wait_s)
    assert text in failure.message


@pytest.mark.parametrize(
    ("fault", "of_proxy", "advice"),
    [
        pytest.param({"not_served": {POOLS}}, False, "install its CRD", id="kind"),
        pytest.param({"proxy": (404, "<html>default backend - 404</html>")}, True, "proxy", id="html"),
        pytest.param({"proxy": (404, "404 page not found\n")}, True, "proxy before it", id="same_text"),
        pytest.param({"proxy": (404, "")}, True, "proxy before it", id="nothing"),
        pytest.param({"proxy": (503, "<html>none healthy</html>")}, False, "Unavailable", id="other_status"),
    ],
)
async def test_404_of_a_proxy_is_no_lack_of_the_cluster(
    double: ApiServerDouble, fault: dict[str, object], of_proxy: bool, advice: str
) -> None:
    for name, value in fault.items():
        setattr(double.faults, name, value)
    async with asking(Access(double.url)) as client:
        with pytest.raises(RequestFailedError) as failed:
            await client.get(POOLS, {})
    assert failed.value.failure.of_proxy == of_proxy
    assert advice in failed.value.failure.message


async def test_failure_has_the_wait_of_the_status_when_no_header_has_one(double: ApiServerDouble) -> None:
    async with asking(Access(double.url)) as client:
        with pytest.raises(RequestFailedError) as failed:
            await client.get(PODS, {"watch": "true", "resourceVersion": "999999", "timeoutSeconds": "1"})
    assert (failed.value.failure.status, failed.value.failure.retry_after_s) == (504, 1.0)


async def test_request_fails_when_nobody_listens_or_the_session_is_closed(double: ApiServerDouble) -> None:
    client = ApiServer(Access(double.url), clock=time.monotonic)
    assert (await failure_of(client)).reason == "unreachable"
    await double.stop()
    async with asking(Access(double.url)) as client:
        assert (await failure_of(client)).reason == "unreachable"


async def test_request_fails_when_the_token_cannot_be_read(double: ApiServerDouble, tmp_path: Path) -> None:
    async with asking(Access(double.url, token=tmp_path / "token")) as client:
        failure = await failure_of(client)
    assert (failure.reason, "token" in failure.message) == ("unreachable", True)


async def test_answer_is_refused_when_it_is_too_large_or_too_slow(
    double: ApiServerDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(Access(double.url)) as client:
        monkeypatch.setattr(api_server, "MAX_BODY_BYTES", 10)
        assert (await failure_of(client)).reason == "too_large"
        endless = {"watch": "true", "resourceVersion": "100", "timeoutSeconds": "60"}
        with pytest.raises(RequestFailedError) as failed:
            await client.send("GET", PODS, query=endless, limit_s=0.01)
    assert failed.value.failure.reason == "timeout"


def tls_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)  # pyright: ignore[reportUnknownMemberType] - also takes a type of pyOpenSSL
    return context


async def test_request_is_sent_again_when_the_authority_was_replaced(
    double: ApiServerDouble, tmp_path: Path
) -> None:
    old, new = trustme.CA(), trustme.CA()
    old.cert_pem.write_to_path(tmp_path / "ca.crt")
    await double.stop()
    await double.start(tls_of(old))
    async with asking(Access(double.url, ca=tmp_path / "ca.crt")) as client:
        await client.get(PODS, {})
        await double.stop()
        await double.start(tls_of(new))
        refused = await failure_of(client)
        assert "certificate of 127.0.0.1" in refused.message
        new.cert_pem.write_to_path(tmp_path / "ca.crt")
        assert b"PodList" in await client.get(PODS, {})


@pytest.mark.parametrize("how", ["nobody", "no_tls", "untrusted"])
async def test_failure_is_in_plain_words_when_there_is_no_connection(
    double: ApiServerDouble, how: str
) -> None:
    """Without the texts of aiohttp, such as `ssl:<ssl.SSLContext object at 0x7f> [None]`."""
    url = double.url.replace("http:", "https:")
    authority = trustme.CA()
    await double.stop()
    if how == "no_tls":
        await double.start()
    if how == "untrusted":
        await double.start(tls_of(trustme.CA()))
    async with asking(Access(url, ca=authority.cert_pem.bytes().decode())) as client:
        message = (await failure_of(client)).message
    expected = {
        "nobody": "connection refused",
        "no_tls": "TLS failed: wrong version number",
        "untrusted": "is not accepted",
    }
    assert expected[how] in message
    assert not any(odd in message for odd in ("SSLContext", "[None]", "ssl:", "None"))


async def test_follower_says_that_nothing_is_known_when_that_is_so(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.faults.forbidden = {PODS}
    async with following(double, Collection(PODS)) as follower:
        await until(lambda: follower.copy.n_failures["http_status"] > 1)
        double.heal()
        await until(lambda: double.n_watches == 1)
        double.faults.forbidden = {PODS}
        double.break_watches("reset")
        await until(lambda: follower.copy.n_failures["http_status"] > 3)
    told = [each.message.partition(":")[0] for each in caplog.records if each.levelname == "WARNING"]
    assert told == ["pods are not known yet", "the last known pods stay in use"]


async def test_follower_says_what_is_wrong_with_a_response_that_is_no_list(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.faults.proxy = (200, "<html>please log in</html>")
    async with following(double, Collection(PODS)) as follower:
        await until(lambda: follower.copy.n_failures["malformed"] > 3)
        double.heal()
        await until(lambda: double.n_watches == 1)
    lines = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert len(lines) == 1
    assert lines[0].startswith("pods are not known yet: the list cannot be read")


async def test_follower_whose_watches_are_accepted_and_fail_says_so_a_few_times(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(double, Collection(PODS)) as follower:
        for number in range(20):
            await until(lambda: double.n_watches == 1)
            double.break_watches("error")
            await until(lambda n=number: follower.copy.n_failures.total() > n)  # type: ignore[misc]
    lines = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert 0 < len(lines) <= MAX_LINES
    assert "the last known pods stay in use" in lines[0]


@pytest.mark.parametrize("trusted", [True, False])
async def test_server_gets_requests_only_when_its_certificate_is_the_clusters(
    double: ApiServerDouble, tmp_path: Path, trusted: bool
) -> None:
    authority = trustme.CA()
    (authority if trusted else trustme.CA()).cert_pem.write_to_path(tmp_path / "ca.crt")
    await double.stop()
    await double.start(tls_of(authority))
    async with asking(Access(double.url, ca=tmp_path / "ca.crt")) as client:
        if trusted:
            assert b"PodList" in await client.get(PODS, {})
        else:
            failure = await failure_of(client)
            assert (failure.reason, "is not accepted" in failure.message) == ("unreachable", True)


async def test_copy_follows_another_selector_when_asked_to(double: ApiServerDouble) -> None:
    for name in ("a", "b"):
        double.put(PODS, name, {"metadata": {"labels": {"app": name}}})
    async with following(double, Collection(PODS, "app=a")) as follower:
        await until(lambda: set(follower.copy.objects) == {"a"})
        follower.follow(Collection(PODS, "app=a"))
        assert follower.copy.synced  # the same selector: nothing to do
        follower.follow(Collection(PODS, "app=b"))
        await until(lambda: set(follower.copy.objects) == {"b"})
        await until(lambda: double.n_watches == 1)
        follower.follow(Collection(PODS, field_selector="metadata.name=a"))
        await until(lambda: set(follower.copy.objects) == {"a"})


async def test_watch_is_given_up_when_the_server_falls_silent(double: ApiServerDouble) -> None:
    double.faults.stalled = True
    timing = Timing(first_delay_s=0.005, watch_s=1, slack_s=-0.9)
    async with following(double, Collection(PODS), timing=timing) as follower:
        await until(lambda: follower.copy.n_failures["timeout"] == 1)
        double.heal()
        double.put(PODS, "a", {})
        await until(lambda: set(follower.copy.objects) == {"a"})


async def test_follower_logs_once_when_it_is_refused_and_once_when_it_continues(
    double: ApiServerDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kvatlas.fleet.kubernetes")
    double.faults.forbidden = {PODS}
    async with following(double, Collection(PODS)) as follower:
        await until(lambda: follower.copy.n_failures["http_status"] > 3)
        double.heal()
        await until(lambda: double.n_watches == 1)
        double.break_watches("reset")
        await until(lambda: follower.copy.n_failures["cut"] == 1)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]


async def test_follower_ends_loudly_when_it_has_a_bug(double: ApiServerDouble) -> None:
    def bug() -> None:
        raise ZeroDivisionError

    async with asking(Access(double.url)) as client:
        copy = ListWatch(Named, timing=FAST, rng=lambda: 0.5)
        with pytest.raises(ZeroDivisionError):
            await Follower(client, Collection(PODS), copy, on_change=bug, clock=time.monotonic).run()
