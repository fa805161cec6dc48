"""The fleet that is simulated: how many engines, how large their caches, how fast."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .. import hardware
from ..block_cache import BlockCache
from ..scheduler import Scheduler
from ..service_times import ServiceTimes
from ..storage_tier import StorageTier


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """Equal engines; tier sizes are in blocks.

    Attributes:
        servers: engines.
        block_size: tokens a block.
        gpu_blocks: GPU pool of each.
        cpu_blocks: CPU tier of each, 0 for none.
        chunk_blocks: blocks a chunk of the CPU tier.
        has_storage: whether all share a storage tier.
        max_num_seqs: requests that run at once on each.
        max_num_batched_tokens: tokens a step computes at most.
        times: service times of each.
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

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the engines."""
        return tuple(f"server-{number}" for number in range(self.servers))

    def coarser(self, n_blocks: int) -> FleetSpec:
        """The same fleet with blocks `n_blocks` times as large, and so many fewer.

        It is about as many times faster to simulate, and off by less than one such block a prompt.
        """
        return replace(
            self,
            block_size=self.block_size * n_blocks,
            gpu_blocks=max(2, self.gpu_blocks // n_blocks),
            cpu_blocks=self.cpu_blocks // n_blocks,
        )

    def schedulers(self) -> list[Scheduler]:
        """New, empty engines."""
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
                times=self.times,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
            )
            for _ in range(self.servers)
        ]
