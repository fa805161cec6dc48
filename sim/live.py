"""`kvatlas simulate`: simulated servers on real sockets until Ctrl-C, as targets of a gateway or of kvatlas."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from rich.console import Console

from . import hardware
from .demo_model import MODEL_NAME, write_demo_model
from .errors import ListenError
from .faults import EventFaults, HttpFaults
from .fleet import Fleet
from .held_port import HeldPort
from .kv_exchange import KvExchange
from .kv_network import KvNetwork, NetworkSpec
from .limits import check_fleet_blocks
from .media import EncodedMedia
from .model_text import TokenizerText
from .output_files import check_file, writing
from .publisher import BUFFERED_BATCHES
from .roles import BOTH, ENCODE, PREFILL, role_names, role_zones
from .server import ServerConfig
from .service_times import ServiceTimes
from .storage_tier import StorageTier

FILES_PER_SERVER = 16
"""Open files of a server without requests: 14 were counted."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)

UNCACHED_TOKENS = 512
"""From which on a written configuration lets a prefill server compute the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """Options of the command.

    Attributes:
        servers: number of servers.
        roles: role of each server, in place of `servers`; empty if all do all, and send each other nothing.
        zones: number of zones over which the servers of each role are spread.
        network: by which servers with roles send each other KV state.
        host: address on which they listen.
        block_size: tokens per block.
        gpu_blocks: GPU pool of each server.
        cpu_blocks: CPU tier of each server; 0 for no CPU tier.
        chunk_blocks: blocks per chunk of the CPU tier.
        storage: whether all servers share a storage tier.
        self_describing: whether events of slower tiers contain tokens.
        times: service times of each server.
        time_scale: real seconds per simulated second.
        replay_batches: number of event batches kept for replay.
        event_faults: injected into live event batches.
        http_faults: injected into completion requests.
        restart_every_s: mean time between two restarts of a server; 0 for no restarts.
        down_s: downtime of a restarted server.
        config: file to write for `kvatlas serve`; None for no file.
        seed: of faults and restarts.
    """

    servers: int = 4
    roles: tuple[str, ...] = ()
    zones: int = 1
    network: NetworkSpec = field(default_factory=hardware.network)
    host: str = "127.0.0.1"
    block_size: int = hardware.BLOCK_SIZE
    gpu_blocks: int = hardware.GPU_BLOCKS
    cpu_blocks: int = 0
    chunk_blocks: int = 1
    storage: bool = False
    self_describing: bool = True
    times: ServiceTimes = field(default_factory=hardware.service_times)
    time_scale: float = 1.0
    replay_batches: int = BUFFERED_BATCHES
    event_faults: EventFaults = field(default_factory=EventFaults)
    http_faults: HttpFaults = field(default_factory=HttpFaults)
    restart_every_s: float = 0.0
    down_s: float = 2.0
    config: Path | None = None
    seed: int = 0


def run_simulate(console: Console, options: SimulateOptions) -> None:
    """Run the servers until SIGINT or SIGTERM. Must be called from the main thread, for its signals.

    Raises:
        SimError: the servers cannot listen, or the configuration cannot be written.
    """
    check_address(options.host)
    check_fleet_blocks(len(options.roles) or options.servers, options.gpu_blocks)
    check_open_files(
        len(options.roles) or options.servers, limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )
    if options.config is not None:
        check_file("--config", options.config)
    asyncio.run(simulate(console, options))


def check_address(host: str) -> None:
    """Check that servers can listen on an address.

    Raises:
        ListenError: they cannot.
    """
    advice = "give an IPv4 address of this machine, or 0.0.0.0 for all"
    if not host:
        raise ListenError(f"--host: found an empty address; {advice}")
    try:
        HeldPort(host)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ListenError(f"--host: cannot listen on {host!r}: {reason}; {advice}") from error


def check_open_files(n_servers: int, *, limit: int) -> None:
    """Check that a process with this limit of open files can run so many servers.

    Raises:
        ListenError: it cannot.
    """
    if 0 <= limit < n_servers * FILES_PER_SERVER:  # negative if there is no limit
        raise ListenError(
            f"{n_servers} servers need {n_servers * FILES_PER_SERVER} open files, and this process may have {limit}; "
            f"use ulimit -Hn, or at most {limit // FILES_PER_SERVER} servers"
        )


def server_configs(options: SimulateOptions) -> list[ServerConfig]:
    """Build the configuration of each server."""
    storage = StorageTier() if options.storage else None
    names = role_names(options.roles) or tuple(f"sim-{number}" for number in range(options.servers))
    zones = role_zones(options.roles, options.zones) if options.zones > 1 else ("",) * len(names)
    network = KvNetwork(options.network, dict(zip(names, zones, strict=True)))
    exchange = KvExchange(network, bytes_per_token=hardware.QWEN3_32B.kv_bytes_per_token)
    encoded = EncodedMedia()
    return [
        ServerConfig(
            name=name,
            model=MODEL_NAME,
            role=options.roles[number] if options.roles else "",
            zone=zones[number],
            exchange=exchange if options.roles else None,
            encoded=encoded if ENCODE in options.roles else None,
            block_size=options.block_size,
            gpu_blocks=options.gpu_blocks,
            cpu_blocks=options.cpu_blocks,
            chunk_blocks=options.chunk_blocks,
            self_describing=options.self_describing,
            max_num_seqs=hardware.MAX_NUM_SEQS,
            max_num_batched_tokens=hardware.MAX_NUM_BATCHED_TOKENS,
            times=options.times,
            time_scale=options.time_scale,
            storage=storage,
            replay_batches=options.replay_batches,
            event_faults=options.event_faults,
            http_faults=options.http_faults,
            seed=options.seed,
        )
        for number, name in enumerate(names)
    ]


def stage_sections(roles: Sequence[str]) -> dict[str, object]:
    """Return the sections of a configuration that places stages on servers with these roles."""
    if not {PREFILL, BOTH} & set(roles):
        return {}
    return {"disaggregation": {"uncachedTokens": UNCACHED_TOKENS, "encode": ENCODE in roles}}


async def simulate(console: Console, options: SimulateOptions) -> None:
    """Run the servers until a signal, in the running event loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        await _until(stop, console, options)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _until(stop: asyncio.Event, console: Console, options: SimulateOptions) -> None:
    with TemporaryDirectory(prefix="kvatlas-simulate-") as name:
        model = options.config.parent / f"{options.config.stem}-model" if options.config else Path(name)
        with writing("--config", model):
            write_demo_model(model)
        async with Fleet(server_configs(options), TokenizerText(model), host=options.host) as fleet:
            if options.config is not None:
                fleet.write_kvatlas_config(
                    options.config,
                    tokenizer=model.absolute(),
                    ext_proc="127.0.0.1:9002",
                    rest="127.0.0.1:8080",
                    sections=stage_sections(options.roles),
                )
                console.print(f"wrote {options.config}", markup=False, highlight=False)
            _print_addresses(console, fleet)
            restarts = asyncio.create_task(
                restart_at_random(
                    fleet,
                    every_s=options.restart_every_s,
                    down_s=options.down_s,
                    rng=Random(options.seed),
                    say=lambda text: console.print(text, markup=False, highlight=False),
                )
            )
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait((restarts, stopped), return_when=asyncio.FIRST_COMPLETED)
            restarts.cancel()
            await asyncio.gather(restarts, return_exceptions=True)


async def restart_at_random(
    fleet: Fleet, *, every_s: float, down_s: float, rng: Random, say: Callable[[str], None]
) -> None:
    """Restart random servers, one after another; wait forever if `every_s` is 0.

    A restarted server has an empty cache, and its sequence numbers start at 0.
    """
    while every_s:
        await asyncio.sleep(rng.expovariate(1 / every_s))
        server = rng.choice(fleet.servers)
        say(f"{server.config.name} dies")
        await server.stop()
        await asyncio.sleep(down_s)
        await server.start()
        say(f"{server.config.name} is back")
    await asyncio.Event().wait()


def _print_addresses(console: Console, fleet: Fleet) -> None:
    for server in fleet.servers:
        console.print(
            f"{server.config.name}  http://{server.address}  events {server.events_address}  replay {server.replay_address}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"model {MODEL_NAME}; Ctrl-C ends it", highlight=False)
