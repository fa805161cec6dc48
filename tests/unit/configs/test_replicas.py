"""Contradictions in the section `replicas`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.loader import load_config, load_file
from support.config_files import HEAD, message_of

MESH = "replicas:\n  transport: mesh\n  mesh: {insecure: true, %s}"
VALKEY = "replicas:\n  transport: valkey\n  valkey: {%s}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(
            "replicas: {name: a}",
            "replicas.transport: found 'none' together with other keys",
            id="no_transport",
        ),
        pytest.param(
            "replicas: {transport: mesh, name: a/b}",
            "replicas.name: found 'a/b', expected text of at most 128 characters that matches ^[^/@]*$",
            id="name",
        ),
        pytest.param(
            "replicas: {transport: redis}",
            "replicas.transport: found 'redis', expected",
            id="other_transport",
        ),
        pytest.param(
            "replicas: {silentAfter: 200ms}", "found 200ms, expected at least 500ms", id="heartbeat"
        ),
        pytest.param(
            "replicas: {transport: mesh, mesh: {discover: {dns: 'a:1'}}}",
            "replicas.mesh.secretFile: missing, expected the file with the secret of all replicas, since others can "
            "reach 'tcp://0.0.0.0:5570'; or insecure: true",
            id="no_secret",
        ),
        pytest.param(MESH % "listen: a:5570", "mesh.listen: found 'a:5570', expected tcp://", id="listen"),
        pytest.param(
            MESH % "", "mesh.discover: found none, expected one of service, dns and list", id="nobody"
        ),
        pytest.param(
            MESH % "discover: {dns: 'a:1', service: b}",
            "found service and dns, expected one of",
            id="two_ways",
        ),
        pytest.param(MESH % "discover: {dns: a}", "discover.dns: found 'a', expected HOST:PORT", id="dns"),
        pytest.param(
            MESH % "discover: {list: ['tcp://a:1', 'a:2']}",
            "list[1]: found 'a:2', expected tcp://",
            id="list",
        ),
        pytest.param(
            MESH % "discover: {list: ['tcp://a:1', 'tcp://a:1']}", "which is also the address at", id="twice"
        ),
        pytest.param(
            VALKEY % "", "valkey: found none, expected one of address, sentinel and cluster", id="where"
        ),
        pytest.param(
            VALKEY % "address: 'a:1', cluster: ['a:1']", "found address and cluster", id="two_servers"
        ),
        pytest.param(VALKEY % "address: a", "valkey.address: found 'a', expected HOST:PORT", id="address"),
        pytest.param(VALKEY % "cluster: [a]", "cluster[0]: found 'a', expected HOST:PORT", id="cluster"),
        pytest.param(
            VALKEY % "sentinel: {master: m}", "sentinel.addresses: missing, expected both", id="sentinel"
        ),
        pytest.param(
            VALKEY % "cluster: ['a:1'], database: 1", "database: found a database together", id="database"
        ),
        pytest.param(
            VALKEY % "address: 'a:1', tls: {enabled: true, keyFile: k}",
            "tls.certFile: found none",
            id="certificate",
        ),
        pytest.param(
            VALKEY % "address: 'a:1', tls: {caFile: c}", "tls.enabled: found false together", id="tls_off"
        ),
        pytest.param(
            "server: {workers: 2, health: ''}\n" + MESH % "listen: 'ipc:///run/a', discover: {dns: 'a:1'}",
            "server.workers: found 2 together with replicas.transport mesh, whose port takes one process, expected 1",
            id="workers",
        ),
    ],
)
def test_contradiction_is_said_with_its_place(body: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEAD + body)

    assert problem in message_of(file)


def test_secret_is_not_needed_on_this_machine(tmp_path: Path) -> None:
    body = "replicas:\n  transport: mesh\n  mesh: {listen: 'tcp://127.0.0.1:5570', discover: {list: ['tcp://127.0.0.1:5571']}}"

    file = tmp_path / "config.yaml"
    file.write_text(HEAD + body)

    mesh = load_config(file).replicas.mesh

    assert mesh.discover.addresses == ("tcp://127.0.0.1:5571",)
    assert not mesh.secret_file


def test_section_of_another_transport_has_no_effect_and_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEAD + VALKEY % "address: 'a:1'" + "\n  mesh: {discover: {dns: 'a:1'}}")
    assert load_file(file).notes == ("replicas.mesh: no effect with transport 'valkey'",)
