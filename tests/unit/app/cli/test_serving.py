"""`kvatlas serve` where the sockets between workers have no place."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app


@pytest.fixture(autouse=True)
def own_signals() -> Generator[None]:
    """Undo what `serve` blocks until it handles signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        pytest.param("missing", "No such file or directory", id="nowhere_to_write"),
        pytest.param("long" * 20, "is longer than 100 bytes", id="long_path"),
    ],
)
def test_workers_without_a_folder_for_sockets_end_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, problem: str
) -> None:
    (tmp_path / ("long" * 20)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    file = tmp_path / "kvatlas.yaml"
    server = "{workers: 2, extProc: '127.0.0.1:0', health: '', rest: '127.0.0.1:0', metrics: ''}"
    file.write_text(f"{{apiVersion: kvatlas/v1, kind: KVAtlasConfig, server: {server}}}")

    found = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["serve", "--config", str(file)])

    assert found.exit_code == 2
    assert "server.workers: no folder for the sockets between workers can be made" in found.stderr
    assert problem in found.stderr
    assert list((tmp_path / ("long" * 20)).iterdir()) == []
