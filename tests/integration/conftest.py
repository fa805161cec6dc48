"""Fixtures of tests over real sockets."""

from __future__ import annotations

import pytest

from support.transports import lack_http2


@pytest.fixture(params=["http2", "grpc"])
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test as on a machine with the native transport, and as on one without."""
    transport: str = request.param
    lack_http2(monkeypatch, None if transport == "http2" else "libnghttp2-14 is missing")
    return transport
