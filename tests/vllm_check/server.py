"""A real vLLM server as a child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from kvatlas.sim.held_port import HeldPort

from .errors import CheckError
from .model import BLOCK_TOKENS, MODEL_NAME, TINY, ModelShape
from .number_format import NUMBER_FORMAT

HOST = "127.0.0.1"
_PLUGIN = Path(__file__).parent / "plugin"
_START_LIMIT_S = 300.0
"""The first start on a machine compiles; later ones take half a minute."""
_STOP_LIMIT_S = 20.0
_POLL_S = 0.2
_LOG_LINES = 20

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else vLLM refuses the executor below
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(_PLUGIN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Model, caches and place of a server.

    Attributes:
        gpu_blocks: size of the engine's own pool.
        cpu_blocks: size of the offload memory, 0 for none.
        chunk_blocks: blocks offloaded together.
        self_describing: whether offload events carry tokens; without, they carry engine hashes alone.
        shape: of the model.
        n_running: most requests that run at once; others wait.
        core: processor that the server may use, None for all.
    """

    gpu_blocks: int
    cpu_blocks: int
    chunk_blocks: int = 1
    self_describing: bool = True
    shape: ModelShape = TINY
    n_running: int = 4
    core: int | None = None


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """Ports of one server; they stay the same over restarts."""

    http: int
    events: int
    replay: int


class VllmServer:
    """One vLLM, running inside `async with`, any number of times.

    Args:
        name: of the server in kvatlas.
        folder: holds `venv`, and the model in a folder of its name; the log goes there too.
        options: its model, caches and place.
    """

    def __init__(self, name: str, folder: Path, options: ServerOptions) -> None:
        self.name = name
        self.options = options
        self._held = tuple(HeldPort() for _ in range(3))
        self.ports = ServerPorts(*(port.number for port in self._held))
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """The `http://HOST:PORT` of the API."""
        return f"http://{HOST}:{self.ports.http}"

    @property
    def events(self) -> str:
        """The ZMQ address of the event publisher."""
        return f"tcp://{HOST}:{self.ports.events}"

    @property
    def replay(self) -> str:
        """The ZMQ address of the replay socket."""
        return f"tcp://{HOST}:{self.ports.replay}"

    async def start(self) -> None:
        """Start it, and return when it serves.

        Raises:
            CheckError: it ended, or was not ready in time; with the last lines of its log.
        """
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._folder / "venv" / "bin" / "vllm",
                *self.arguments(),
                env=os.environ | ENVIRONMENT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # its own process group, so that none of its workers outlives it
            )
        if self.options.core is not None:
            os.sched_setaffinity(self._process.pid, {self.options.core})  # its workers inherit that
        try:
            async with asyncio.timeout(_START_LIMIT_S), aiohttp.ClientSession() as session:
                while not await self._serves(session):
                    self._check()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            await self.stop()
            raise CheckError(
                f"{self.name} did not serve within {_START_LIMIT_S:.0f} s:\n{self._tail()}"
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End it and all its workers, by force if necessary."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_LIMIT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def cpu_s(self) -> float:
        """Return the CPU seconds of its processes since the start; 0 if it does not run."""
        group = self._process.pid if self._process is not None else None
        ticks = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it may end meanwhile
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:13])) if int(fields[2]) == group else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def arguments(self) -> list[str]:
        """Return the arguments of `vllm`."""
        options = self.options
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.ports.events}",
            "replay_endpoint": f"tcp://*:{self.ports.replay}",
            "topic": f"kv@{HOST}:{self.ports.http}@{MODEL_NAME}",
        }
        offload: dict[str, object] = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "HostCopySpec",
                "spec_module_path": "kvatlas_host_copy",
                "cpu_bytes_to_use": options.cpu_blocks * options.shape.block_bytes,
                "block_size": options.chunk_blocks * BLOCK_TOKENS,
                "self_describing_kv_events": options.self_describing,
            },
        }
        values = {
            "--served-model-name": MODEL_NAME,
            "--host": HOST,
            "--port": str(self.ports.http),
            "--dtype": NUMBER_FORMAT.name,
            # A worker process of its own would poll for a second after each step, on the core that computes.
            "--distributed-executor-backend": "uni",
            "--max-model-len": str(options.shape.max_tokens),
            "--max-num-batched-tokens": str(options.shape.max_tokens),
            "--max-num-seqs": str(options.n_running),
            "--block-size": str(BLOCK_TOKENS),
            "--num-gpu-blocks-override": str(options.gpu_blocks),
            "--kv-events-config": json.dumps(events),
        }
        if options.cpu_blocks:
            values["--kv-transfer-config"] = json.dumps(offload)
        switches = ("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details")
        words = (word for pair in values.items() for word in pair)
        return ["serve", str(self._folder / options.shape.name), *words, *switches]

    async def _serves(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False

    def _check(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            raise CheckError(f"{self.name} ended with status {self._process.returncode}:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def vllm_servers(folder: Path, options: Sequence[ServerOptions]) -> list[VllmServer]:
    """Return servers `vllm-0`, `vllm-1`, ..., not started."""
    return [VllmServer(f"vllm-{number}", folder, each) for number, each in enumerate(options)]


@asynccontextmanager
async def running(servers: Sequence[VllmServer]) -> AsyncGenerator[None]:
    """Run all servers, started together; if one fails, none is left running."""
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.stop)
        async with asyncio.TaskGroup() as starts:
            for server in servers:
                starts.create_task(server.start())
        yield
