"""TLS between replicas and a real server: both sides have certificates of one authority, and a user with few rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.certificates import Authority
from support.serve import serving
from support.valkey_nodes import connected, nodes, until_heard
from support.valkey_process import N_SLOTS, Server, ServerTls, free_port, one, running
from support.waiting import until

RIGHTS = ("on", "resetchannels", "&kvatlas:*", "-@all", "+ssubscribe", "+spublish", "+ping")


@pytest.fixture
def tls(tmp_path: Path) -> ServerTls:
    return ServerTls(Authority(tmp_path / "authority"), "127.0.0.1")


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other")


async def test_certificates_and_a_user_with_few_rights_work_together(tls: ServerTls, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    async with one(tmp_path, tls=tls) as server:
        await server.call("ACL", "SETUSER", "kvatlas", ">secret", *RIGHTS)
        login = {"username": "kvatlas", "passwordFile": str(password)}
        async with nodes("a", "b", address=server.address, tls=tls.client(), **login) as (a, b):
            await connected(a, b)
            await until_heard(a, b, b"first")
            await server.call("CLIENT", "KILL", "USER", "kvatlas")
            await until_heard(b, a, b"second")


async def problem_with(server: Server, *kinds: str, **config: Any) -> str:
    """Return what a transport says that cannot connect, once its metric has counted it too, as any of these kinds."""
    async with nodes("a", **{"address": server.address, **config}) as (a,):
        traffic = a.transport.traffic
        await until(lambda: traffic.failures.total() > 0, what="a failure")
        assert not a.transport.is_connected
        assert traffic.failures.keys() <= {*kinds}
        return traffic.problem


async def test_what_does_not_fit_is_refused_and_said(
    tls: ServerTls, other: Authority, tmp_path: Path
) -> None:
    good = tls.client()
    foreign = dict(zip(("certFile", "keyFile"), map(str, other.certify("user@else")), strict=True))
    async with one(tmp_path, tls=tls) as server:
        said = await problem_with(server, "tls", tls=good | {"caFile": str(other.file)})
        assert "the server's certificate is refused: self-signed certificate in certificate chain" in said
        assert "replicas.valkey.tls.caFile must have the authority" in said

        said = await problem_with(server, "tls", address=f"localhost:{server.port}", tls=good)
        assert "certificate is not valid for 'localhost'" in said
        assert "replicas.valkey.tls.checkHostname" in said

        # the server says why and closes the connection; either may come first
        said = await problem_with(server, "tls", "unreached", tls=good | foreign)
        assert "replicas.valkey.tls.certFile must have one of an authority that the server knows" in said

        said = await problem_with(server, "tls", tls=good | {"keyFile": foreign["keyFile"]})
        assert "the files of replicas.valkey.tls, or the server's TLS, cannot be used: KEY_VALUES" in said

        said = await problem_with(server, "tls", tls=good | {"caFile": str(tmp_path / "absent")})
        assert (
            said == f"replicas.valkey.tls.caFile: cannot read '{tmp_path}/absent': No such file or directory"
        )

        without = {"enabled": True, "caFile": good["caFile"]}
        said = await problem_with(server, "tls", "unreached", tls=without)
        assert said.endswith(
            "replicas.valkey.tls.certFile must have one of an authority that the server knows"
        )
        said = await problem_with(server, "unreached")
        assert said.endswith("if it wants TLS, set replicas.valkey.tls.enabled")


async def test_host_name_is_not_checked_if_told_so(tls: ServerTls, tmp_path: Path) -> None:
    config = tls.client() | {"checkHostname": False}
    async with (
        one(tmp_path, tls=tls) as server,
        nodes("a", address=f"localhost:{server.port}", tls=config) as (a,),
    ):
        await connected(a)


async def test_cluster_is_found_over_tls(tls: ServerTls, tmp_path: Path) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--tls-cluster", "yes")
    server = Server(tmp_path / "node", free_port(), options, tls=tls)
    async with running(server):
        await server.call("CLUSTER", "ADDSLOTSRANGE", 0, N_SLOTS - 1)
        async with nodes("a", "b", cluster=[server.address], tls=tls.client()) as (a, b):
            await connected(a, b)
            await until_heard(a, b, b"by the shard")


async def test_primary_is_found_by_a_sentinel_over_tls(tls: ServerTls, tmp_path: Path) -> None:
    primary = Server(tmp_path / "primary", free_port(), tls=tls)
    options = ("--tls-replication", "yes")
    sentinel = Server(tmp_path / "sentinel", free_port(), options, is_sentinel=True, tls=tls)
    sentinel.folder.mkdir()
    (sentinel.folder / "server.conf").write_text(f"sentinel monitor kv 127.0.0.1 {primary.port} 1\n")
    async with running(primary, sentinel):
        config = {"sentinel": {"master": "kv", "addresses": [sentinel.address]}, "tls": tls.client()}
        async with nodes("a", "b", **config) as (a, b):
            await connected(a, b)
            await until_heard(a, b, b"by the primary")


async def test_wrong_authority_is_said_by_the_process_and_the_right_one_taken_up(
    tls: ServerTls, other: Authority, tmp_path: Path
) -> None:
    authority = tmp_path / "mounted.crt"
    authority.write_bytes(other.file.read_bytes())
    async with one(tmp_path, tls=tls) as server:
        valkey = {"address": server.address, "tls": tls.client() | {"caFile": str(authority)}}
        config = {"replicas": {"transport": "valkey", "name": "one", "valkey": valkey}}
        async with serving({"model": {"names": ["m"]}} | config, tmp_path) as served:
            await served.until_logged("replicas: the server's certificate is refused")
            assert 'kvatlas_replica_connection_failures_total{reason="tls"}' in await served.metrics()
            (heard,) = [
                each
                for each in (await served.get("/v1/doctor"))["checks"]
                if each["name"] == "replicas-heard"
            ]
            assert heard["state"] == "fail"
            assert "the server's certificate is refused" in heard["evidence"][0]

            authority.write_bytes(tls.authority.file.read_bytes())
            await served.until_metric("kvatlas_replica_connections_total 1.0")
            assert (await served.get("/v1/replicas"))["problem"] is None
