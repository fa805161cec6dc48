"""Fixtures of tests over real sockets."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["http2", "grpc"])
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test as on a machine with the native transport, and as on one without."""
    transport: str = request.param
    monkeypatch.setattr("kvatlas.api.extproc.server.has_http2", lambda **_: transport == "http2")
    return transport
