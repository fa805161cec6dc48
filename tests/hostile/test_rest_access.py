"""Calls of REST by strangers: other machines, other sites in a browser, and addresses that nobody should follow."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from support.certificates import certificate_files
from support.serve import ANY_PORTS, Served, serving

ELSEWHERE = "127.0.0.2"
"""Source address of a stranger: of this machine, and not 127.0.0.1."""

ENGINE = {"instance_id": "i", "endpoint": "tcp://127.0.0.1:9", "model": "m", "block_size": 16}
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", "/v1/weights", {"queue": 3}),
    ("POST", "/register", ENGINE),
    ("POST", "/unregister", {"instance_id": "i"}),
    ("POST", "/v1/endpoints/a/reset", {}),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    rest = {
        "allowedHosts": ["kv.example", "*.corp.example"],
        "maxRegistered": 2,
        "registerAllow": ["127.0.0.0/8"],
    }
    async with serving({"rest": rest}, tmp_path_factory.mktemp("rest")) as found:
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def call(
    served: Served,
    method: str,
    path: str,
    body: object = None,
    *,
    source: str = "127.0.0.1",
    tls: ssl.SSLContext | bool = False,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Return status and message of a call from a source address."""
    url = f"{'https' if tls else 'http'}://127.0.0.1:{served.ports['rest']}{path}"
    connector = aiohttp.TCPConnector(local_addr=(source, 0), ssl=tls)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, url, json=body, headers=headers) as answer,
    ):
        text = await answer.text()
        return answer.status, text


async def refusals(served: Served, reason: str) -> float:
    name = f'kvatlas_rest_refusals_total{{reason="{reason}"}} '
    lines = (await served.metrics()).splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_change_is_refused_from_elsewhere_without_a_token(
    served: Served, method: str, path: str, body: dict[str, Any]
) -> None:
    before = await refusals(served, "not_local")
    status, text = await call(served, method, path, body, source=ELSEWHERE)
    assert (status, "server.auth.bearerTokenFile" in text) == (403, True), text
    assert await refusals(served, "not_local") == before + 1
    status, text = await call(served, method, path, body)
    assert status in {200, 201, 404}, text


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP"])
async def test_change_through_a_proxy_of_this_machine_is_not_local(served: Served, header: str) -> None:
    status, text = await call(served, "PUT", "/v1/weights", {"queue": 3}, headers={header: "127.0.0.1"})
    assert (status, "server.auth.bearerTokenFile" in text) == (403, True), text


async def test_questions_are_answered_from_elsewhere(served: Served) -> None:
    body = {"model": "m", "token_ids": [1, 2, 3]}
    assert (await call(served, "POST", "/query", body, source=ELSEWHERE))[0] == 200
    assert (await call(served, "GET", "/v1/endpoints", source=ELSEWHERE))[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("localhost:8080", 200, id="port_forward"),
        pytest.param("10.1.2.3:8080", 200, id="pod_address"),
        pytest.param("[fd00::1]:8080", 200, id="ipv6"),
        pytest.param("qwen-epp", 200, id="service"),
        pytest.param("qwen-epp.llm.svc:8080", 200, id="service_of_a_namespace"),
        pytest.param("qwen-epp.llm.svc.cluster.local.", 200, id="service_in_full"),
        pytest.param("kv.example", 200, id="allowed"),
        pytest.param("a.corp.example:80", 200, id="allowed_below_a_domain"),
        pytest.param("rebound.attacker.example:8080", 403, id="rebound"),
        pytest.param("kv.example.attacker.example", 403, id="allowed_name_first"),
        pytest.param("corp.example", 403, id="domain_itself"),
        pytest.param("x.svc.attacker.example", 403, id="svc_inside"),
        pytest.param("127.0.0.1.attacker.example", 403, id="address_first"),
        pytest.param("a.b c", 403, id="no_name"),
    ],
)
async def test_names_of_others_are_refused_in_the_host_header(served: Served, host: str, status: int) -> None:
    before = await refusals(served, "foreign_host")
    for path in ("/v1/decisions", "/ui", "/openapi.json", "/metrics"):
        found, text = await call(served, "GET", path, headers={"Host": host})
        assert (found, status == 200 or "rest.allowedHosts" in text) == (status, True), text
    assert await refusals(served, "foreign_host") == before + (0 if status == 200 else 4)
    assert (await call(served, "GET", "/readyz", headers={"Host": host}))[0] == 200  # a probe may send any


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        pytest.param("localhost:8080", "http://localhost:8080", 200, id="own_page"),
        pytest.param("kv.example", "https://kv.example", 200, id="behind_tls"),
        pytest.param("epp", "https://kv.example", 200, id="behind_a_proxy_that_renames"),
        pytest.param("localhost:8080", "http://localhost:3000", 403, id="other_port"),
        pytest.param("localhost:8080", "https://attacker.example", 403, id="other_site"),
        pytest.param("localhost:8080", "null", 403, id="sandbox"),
        pytest.param("localhost:8080", "http://[", 403, id="malformed"),
    ],
)
async def test_pages_of_other_sites_are_refused(served: Served, host: str, origin: str, status: int) -> None:
    for method, path, body in (
        ("PUT", "/v1/weights", {"queue": 3}),
        ("POST", "/query", {"token_ids": [1]}),
        ("GET", "/v1/decisions", None),
    ):
        found, text = await call(served, method, path, body, headers={"Host": host, "Origin": origin})
        assert (found, status == 200 or "another site" in text) == (status, True), text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"endpoint": "ipc:///tmp/socket"}, "tcp://HOST:PORT", id="ipc"),
        pytest.param({"replay_endpoint": "ipc:///tmp/socket"}, "tcp://HOST:PORT", id="ipc_replay"),
        pytest.param({"endpoint": "tcp://10.0.0.1:5557"}, "rest.registerAllow", id="other_network"),
        pytest.param({"endpoint": "tcp://169.254.169.254:80"}, "rest.registerAllow", id="metadata"),
        pytest.param({"endpoint": "tcp://engine:5557"}, "rest.registerAllow", id="name"),
        pytest.param({"replay_endpoint": "tcp://[::1]:1"}, "rest.registerAllow", id="replay"),
    ],
)
async def test_addresses_that_are_not_allowed_are_not_followed(
    served: Served, fields: dict[str, str], said: str
) -> None:
    status, text = await call(served, "POST", "/register", ENGINE | {"instance_id": "other"} | fields)
    assert (status, said in text) == (400, True), text
    assert all(worker["instance_id"] != "other" for worker in await served.get("/workers"))


async def test_registered_ranks_have_a_bound(served: Served) -> None:
    await call(served, "POST", "/unregister", {"instance_id": "i"})
    for rank in range(2):
        assert (await call(served, "POST", "/register", ENGINE | {"dp_rank": rank}))[0] == 201
    before = await refusals(served, "too_many_registered")
    for fields in ({"dp_rank": 2}, {"instance_id": "j"}):
        status, text = await call(served, "POST", "/register", ENGINE | fields)
        assert (status, "rest.maxRegistered" in text) == (503, True), text
    assert await refusals(served, "too_many_registered") == before + 2
    assert (await call(served, "POST", "/register", ENGINE | {"dp_rank": 1}))[0] == 200  # as before
    assert (await call(served, "POST", "/unregister", {"instance_id": "i", "dp_rank": 0}))[0] == 200
    assert (await call(served, "POST", "/register", ENGINE | {"instance_id": "j"}))[0] == 201


@contextlib.contextmanager
def open_files(soft: int) -> Generator[None]:
    """Bound the open files of processes that are started meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_registered_ranks_leave_half_of_the_open_files_to_others(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with open_files(256):
            served = await stack.enter_async_context(serving({}, tmp_path))
        statuses = [
            (await call(served, "POST", "/register", ENGINE | {"instance_id": number}))[0]
            for number in range(30)
        ]
        assert statuses == [201] * 25 + [503] * 5
        async with contextlib.AsyncExitStack() as others:
            for _ in range(50):  # connections beside them
                _, writer = await asyncio.open_connection("127.0.0.1", served.ports["rest"])
                others.callback(writer.close)
            assert await served.status("/healthz") == 200


@contextlib.asynccontextmanager
async def guarded(folder: Path) -> AsyncGenerator[Served]:
    (folder / "token").write_text("secret")
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(folder / "token")}}
    async with serving({"server": server}, folder) as found:
        yield found


async def test_token_admits_changes_from_everywhere_and_its_absence_from_nowhere(tmp_path: Path) -> None:
    async with guarded(tmp_path) as served:
        for source in ("127.0.0.1", ELSEWHERE):
            change = ("PUT", "/v1/weights", {"queue": 3})
            assert (await call(served, *change, source=source))[0] == 401
            given = {"Authorization": "Bearer secret", "Host": "kv.example", "X-Forwarded-For": "1.2.3.4"}
            assert (await call(served, *change, source=source, headers=given))[0] == 200


async def test_client_certificate_admits_changes_from_elsewhere_but_no_page_of_another_site(
    tmp_path: Path,
) -> None:
    for name in ("server", "client"):
        (tmp_path / name).mkdir()
    ours, theirs = certificate_files(tmp_path / "server"), certificate_files(tmp_path / "client")
    tls = {
        "certFile": ours.config.cert_file,
        "keyFile": ours.config.key_file,
        "clientCaFile": theirs.config.cert_file,
    }
    context = ssl.create_default_context(cafile=ours.config.cert_file)
    context.check_hostname = False
    context.load_cert_chain(theirs.config.cert_file, theirs.config.key_file)
    change = ("PUT", "/v1/weights", {"queue": 3})
    async with serving({"server": ANY_PORTS | {"tls": tls}}, tmp_path, ready=False) as served:
        assert (await call(served, *change, source=ELSEWHERE, tls=context))[0] == 200
        assert (await call(served, *change, tls=context, headers={"Origin": "https://attacker.example"}))[
            0
        ] == 403
        assert (await call(served, *change, tls=context, headers={"Host": "attacker.example"}))[0] == 403
