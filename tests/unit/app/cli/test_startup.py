"""Imports of commands: help and commands that query a running process import no server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SERVER = (
    "kvatlas.app.app",
    "aiohttp",
    "fastapi",
    "grpc",
    "numpy",
    "tokenizers",
    "zmq",
)
NOWHERE = ("--url", "http://127.0.0.1:1")

LIST_MODULES = """
import json, sys
from kvatlas.app.cli import main
sys.argv = ["kvatlas", *json.loads(sys.argv[1])]
try:
    main.main()
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--help",), id="help"),
        pytest.param(("serve", "--help"), id="help_of_a_command"),
        pytest.param(("explain", "--last", *NOWHERE), id="explain"),
        pytest.param(("query", "--prompt", "x", *NOWHERE), id="query"),
        pytest.param(("top", "--once", *NOWHERE), id="top"),
        pytest.param(("doctor", *NOWHERE), id="doctor"),
        pytest.param(("capacity", *NOWHERE), id="capacity"),
        pytest.param(("recorder", *NOWHERE), id="recorder"),
        pytest.param(("shadow", *NOWHERE), id="shadow"),
    ],
)
def test_command_imports_no_server(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", LIST_MODULES, json.dumps(arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = set(json.loads(run.stdout.splitlines()[-1]))
    assert modules.isdisjoint(SERVER)
    assert "kvatlas.app.cli.main" in modules
