"""Machines with the libraries of the native transport, and without them."""

from __future__ import annotations

import pytest


def lack_http2(monkeypatch: pytest.MonkeyPatch, missing: str | None) -> None:
    """Have this machine lack what the native transport needs; None: it has everything."""

    def obstacle(*, with_tls: bool = False) -> str | None:
        return missing

    def has_http2(*, with_tls: bool = False) -> bool:
        return missing is None

    monkeypatch.setattr("kvatlas.api.extproc.server.obstacle", obstacle)
    monkeypatch.setattr("kvatlas.api.extproc.server.has_http2", has_http2)
