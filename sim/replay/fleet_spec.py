"""Specification of the simulated fleet: number of engines, cache sizes, service times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...scorers.filters.roles import ROLE_LABEL
from .. import hardware
from ..block_cache import BlockCache
from ..errors import ReplayError
from ..kv_exchange import KvExchange
from ..kv_network import KvNetwork, NetworkSpec
from ..roles import LABELS, ZONE_LABEL, role_names, role_zones
from ..scheduler import Scheduler
from ..service_times import ServiceTimes
from ..storage_tier import StorageTier


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet of engines, equal but for their speeds and roles; tier sizes are in blocks.

    Attributes:
        servers: number of engines.
        block_size: tokens per block.
        gpu_blocks: GPU pool of each engine.
        cpu_blocks: CPU tier of each engine; 0 for no CPU tier.
        chunk_blocks: blocks per chunk of the CPU tier.
        has_storage: whether all engines share a storage tier.
        max_num_seqs: maximum number of concurrently running requests per engine.
        max_num_batched_tokens: maximum number of tokens per step.
        times: service times of each engine.
        speeds: relative speeds of the engines' computing, taken in turn; copies between tiers are not faster.
        roles: role of each engine; empty if all do all, and send each other nothing.
        zones: number of zones over which the engines of each role are spread.
        network: by which engines with roles send each other KV state.
        encode_s: seconds per image, wherever it is encoded.
    """

    servers: int = 8
    block_size: int = hardware.BLOCK_SIZE
    gpu_blocks: int = hardware.GPU_BLOCKS
    cpu_blocks: int = 0
    chunk_blocks: int = 1
    has_storage: bool = False
    max_num_seqs: int = hardware.MAX_NUM_SEQS
    max_num_batched_tokens: int = hardware.MAX_NUM_BATCHED_TOKENS
    times: ServiceTimes = field(default_factory=hardware.service_times)
    speeds: tuple[float, ...] = (1.0,)
    roles: tuple[str, ...] = ()
    zones: int = 1
    network: NetworkSpec = field(default_factory=hardware.network)
    encode_s: float = hardware.ENCODE_S_PER_ITEM

    def __post_init__(self) -> None:
        """Check that each engine has a role, or none has.

        Raises:
            ReplayError: some have none.
        """
        if self.roles and len(self.roles) != self.servers:
            raise ReplayError(f"found {len(self.roles)} roles for {self.servers} servers")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the engines."""
        return role_names(self.roles) or tuple(f"server-{number}" for number in range(self.servers))

    @property
    def labels(self) -> tuple[dict[str, str], ...]:
        """Labels of the engines: the speed, if there are several, and role and zone, if they have roles."""
        speeds = (self.speeds[number % len(self.speeds)] for number in range(self.servers))
        labels = ({"speed": f"{speed:g}"} if len(self.speeds) > 1 else {} for speed in speeds)
        if not self.roles:
            return tuple(labels)
        zones = role_zones(self.roles, self.zones)
        return tuple(
            each | {ROLE_LABEL: LABELS[role], ZONE_LABEL: zone}
            for each, role, zone in zip(labels, self.roles, zones, strict=True)
        )

    @property
    def max_request_tokens(self) -> int:
        """Most tokens, prompt and output, of a request that an engine can hold."""
        return (self.gpu_blocks - 1) * self.block_size

    def times_of(self, server: int) -> ServiceTimes:
        """Return the service times of an engine by its number."""
        return self.times.faster(self.speeds[server % len(self.speeds)])

    def coarser(self, n_blocks: int) -> FleetSpec:
        """Return the same fleet with `n_blocks` times larger blocks, and accordingly fewer of them.

        The simulation is about `n_blocks` times faster, with an error of less than one such block per prompt.
        """
        return replace(
            self,
            block_size=self.block_size * n_blocks,
            gpu_blocks=max(2, self.gpu_blocks // n_blocks),
            cpu_blocks=self.cpu_blocks // n_blocks,
        )

    def exchange(self) -> KvExchange:
        """Make the exchange of engines with roles."""
        zones = dict(zip(self.names, role_zones(self.roles, self.zones), strict=True))
        network = KvNetwork(self.network, zones)
        return KvExchange(network, bytes_per_token=hardware.QWEN3_32B.kv_bytes_per_token)

    def schedulers(self, exchange: KvExchange | None = None) -> list[Scheduler]:
        """Make new, empty engines, which send each other KV state if there is an exchange."""
        storage = StorageTier() if self.has_storage else None
        return [
            Scheduler(
                BlockCache(
                    block_size=self.block_size,
                    gpu_blocks=self.gpu_blocks,
                    cpu_blocks=self.cpu_blocks,
                    chunk_blocks=self.chunk_blocks,
                    self_describing=False,
                    storage=storage,
                ),
                times=self.times_of(number),
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                connector=None if exchange is None else exchange.join(name, name),
            )
            for number, name in enumerate(self.names)
        ]
