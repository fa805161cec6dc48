"""Requests for configured URLs."""

from __future__ import annotations

import pytest

from kvatlas.fleet.scrape.connection import Destination


@pytest.mark.parametrize(
    ("url", "where", "line", "host"),
    [
        pytest.param(
            "http://10.0.0.1:8000/metrics", ("10.0.0.1", 8000, False), "/metrics", "10.0.0.1:8000", id="plain"
        ),
        pytest.param("http://engine", ("engine", 80, False), "/", "engine", id="host_alone"),
        pytest.param("https://engine/m", ("engine", 443, True), "/m", "engine", id="tls"),
        pytest.param("http://[::1]:9/m", ("::1", 9, False), "/m", "[::1]:9", id="ipv6"),
        pytest.param(
            "http://h:1/a b?x=ü y#f", ("h", 1, False), "/a%20b?x=%C3%BC%20y", "h:1", id="odd_characters"
        ),
        pytest.param("http://h:1/a%20b?x=%26", ("h", 1, False), "/a%20b?x=%26", "h:1", id="escaped_already"),
        pytest.param("http://h:1/\r\nX: y", ("h", 1, False), "/X:%20y", "h:1", id="line_break"),
    ],
)
def test_request_asks_the_host_for_the_path(
    url: str, where: tuple[str, int, bool], line: str, host: str
) -> None:
    destination = Destination.of(url)
    lines = destination.request().decode().split("\r\n")

    assert (destination.host, destination.port, destination.is_tls) == where
    assert lines[0] == f"GET {line} HTTP/1.1"
    assert f"Host: {host}" in lines
    assert "Accept-Encoding: identity" in lines
    assert lines[-2:] == ["", ""]


@pytest.mark.parametrize(
    ("url", "line"),
    [
        pytest.param("http://h/m", "/m?name[]=vllm:a&name[]=b", id="no_query"),
        pytest.param("http://h/m?x=1", "/m?x=1&name[]=vllm:a&name[]=b", id="query"),
    ],
)
def test_request_names_series_behind_what_the_url_asks(url: str, line: str) -> None:
    request = Destination.of(url).request(["vllm:a", "b"])

    assert request.startswith(f"GET {line} HTTP/1.1\r\n".encode())


def test_user_and_password_are_sent_and_not_shown() -> None:
    destination = Destination.of("http://me:p%40ss@h:1/m")

    assert b"\r\nAuthorization: Basic bWU6cEBzcw==\r\n" in destination.request()
    assert b"\r\nHost: h:1\r\n" in destination.request()
    assert destination.shown == "http://h:1/m"
    assert b"Authorization" not in Destination.of("http://h:1/m").request()
