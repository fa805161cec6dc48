"""Standard output that takes no more: a full device, and a pipe whose reader has left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.tree import ROOT

CASES = [
    pytest.param("config show configs/default.yaml", id="config_show"),
    pytest.param("config schema", id="config_schema"),
    pytest.param("config check configs/default.yaml", id="less_than_a_buffer"),
    pytest.param("--help", id="help"),
    pytest.param("serve --help", id="help_of_a_command"),
    pytest.param("replay {trace} --policy random --cpu-gb 0 --endpoints 1", id="replay"),
    pytest.param("replay {trace} --policy random --cpu-gb 0 --endpoints 1 --json", id="replay_json"),
]


def run(command: str, tmp_path: Path, *, stdout: int, **environment: str) -> tuple[int, str]:
    """Run a command; return exit status and stderr."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n')
    line = [sys.executable, "-m", "kvatlas.app.cli.main", *command.format(trace=trace).split()]
    found = subprocess.run(
        line,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | environment,
        text=True,
        check=False,
    )
    return found.returncode, found.stderr.strip()  # a bar of progress ends with an empty line


@contextmanager
def pipe_without_reader() -> Generator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@pytest.mark.parametrize("command", CASES)
def test_full_device_is_one_line_on_stderr(command: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        status, stderr = run(command, tmp_path, stdout=full.fileno())

    assert (status, stderr) == (2, "kvatlas: the output cannot be written: No space left on device")


@pytest.mark.parametrize("command", CASES)
def test_reader_that_has_left_ends_the_command_quietly(command: str, tmp_path: Path) -> None:
    with pipe_without_reader() as pipe:
        assert run(command, tmp_path, stdout=pipe) == (141, "")


def test_output_without_a_buffer_ends_the_same(tmp_path: Path) -> None:
    with pipe_without_reader() as pipe:
        assert run("config schema", tmp_path, stdout=pipe, PYTHONUNBUFFERED="1") == (141, "")


def test_status_of_a_command_stays_when_its_output_is_read(tmp_path: Path) -> None:
    status, stderr = run("config check nowhere.yaml", tmp_path, stdout=subprocess.DEVNULL)

    assert (status, "no such file" in stderr) == (1, True)
