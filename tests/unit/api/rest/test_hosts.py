"""Names of the process, without a running process."""

from __future__ import annotations

import pytest

from kvatlas.api.rest.hosts import HostNames


@pytest.mark.parametrize(
    ("allowed", "header", "is_own"),
    [
        pytest.param((), "localhost", True, id="localhost"),
        pytest.param((), "LOCALHOST.:8080", True, id="capitals_and_a_dot"),
        pytest.param((), "::1", False, id="ipv6_without_brackets"),
        pytest.param((), "[::1]", True, id="ipv6"),
        pytest.param((), "127.0.0.1", True, id="ipv4"),
        pytest.param((), "node.example:80", True, id="this_machine"),
        pytest.param((), "epp.ns", False, id="namespace_without_svc"),
        pytest.param((), "pod.ns.pod.cluster.local", True, id="pod"),
        pytest.param((), ":80", False, id="no_name"),
        pytest.param((), "cluster.local", False, id="end_alone"),
        pytest.param(("epp.ns",), "epp.ns:80", True, id="allowed"),
        pytest.param(("*.corp.example",), "a.b.corp.example", True, id="below"),
        pytest.param(("*.corp.example",), "acorp.example", False, id="no_dot_between"),
        pytest.param(("*",), "attacker.example", True, id="every_name"),
    ],
)
def test_header_host_names_this_process(allowed: tuple[str, ...], header: str, is_own: bool) -> None:
    assert HostNames(allowed, own=("Node.example",)).has(header) == is_own


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        pytest.param("http://localhost:1", "LOCALHOST:1", True, id="same"),
        pytest.param("http://localhost:2", "localhost:1", False, id="other_port"),
        pytest.param("https://a.corp.example", "epp:8080", True, id="allowed"),
        pytest.param("http://10.0.0.1:1", "10.0.0.2:1", False, id="other_address"),
        pytest.param("null", "localhost", False, id="null"),
        pytest.param("", "", False, id="empty"),
        pytest.param("http://[::1", "[::1", False, id="malformed"),
    ],
)
def test_header_origin_names_a_page_of_this_process(origin: str, host: str, is_own: bool) -> None:
    assert HostNames(["*.corp.example"]).is_own_page(origin, host) == is_own
