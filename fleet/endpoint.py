"""One endpoint of the fleet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..configs.approximate import ApproximateConfig
from ..configs.endpoints import EndpointAddresses
from ..events.stream import Trust
from ..scorers.filters.roles import DECODE_ROLES, ROLE_LABEL
from .audit import Audited
from .chunk_evidence import ChunkEvidence
from .drafters import LABEL, DroppedBlock
from .instance import Instance
from .prompt_ends import LABEL as ENDS_LABEL
from .prompt_ends import PromptEnds
from .rank import SAME_RESTART_S, Rank
from .silent_resets import SilentResets


@dataclass(slots=True)
class Endpoint:
    """One model server, with everything the fleet keeps for it."""

    name: str
    addresses: EndpointAddresses
    labels: Mapping[str, str]
    added_at: float
    """Monotonic seconds."""
    instance: Instance
    ranks: list[Rank] = field(default_factory=list[Rank])
    started: float | None = None
    """Process start time of the last scrape, wall-clock seconds."""
    told_block_size: int | None = None
    """Tokens per block, as reported by the engine's metrics, before them by the configuration."""
    gpu_blocks: int | None = None
    """Blocks of the fastest tier per rank, as reported by the engine's metrics."""
    slow_blocks: int | None = None
    """Blocks per rank behind the fastest tier, as reported by the engine's metrics."""
    offloads: bool = False
    """Whether the engine's metrics have shown blocks moving to slower memory."""
    finds_outside: bool = False
    """Whether prompt tokens came from outside the GPU: from slower memory, or from another server."""
    resets: defaultdict[int, SilentResets] = field(default_factory=lambda: defaultdict(SilentResets))
    """Evidence that a rank emptied a slower tier without an event, by its number."""
    chunks: ChunkEvidence = field(default_factory=ChunkEvidence)
    """Chunk size of its slower tiers that its answers show."""
    ends: PromptEnds = field(init=False)
    """Evidence about its reuse of prompts that are held whole."""
    drafter: DroppedBlock = field(init=False)
    """Whether it computes the last matched block of a prompt again."""
    prefill_tokens_per_s: float | None = None
    """Uncached prompt tokens that one rank computes per second, as its engine publishes it; None if it does not."""
    address: str | None = field(init=False)
    """`HOST:PORT` that serves requests, None if it takes none. Written once here, since every decision reads it."""
    host: str | None = field(init=False)
    """`HOST` of `address`, IPv6 in brackets."""

    def __post_init__(self) -> None:
        self.drafter, self.ends = DroppedBlock(self.labels), PromptEnds(self.labels)
        self.told_block_size = self.addresses.block_size
        serving = self.addresses.serving
        self.address = str(serving) if serving is not None else None
        self.host = serving.url_host if serving is not None else None

    @property
    def has_slow_memory(self) -> bool:
        """Return whether its metrics show offloading; one with a role that decodes gets tokens from others too."""
        return self.offloads or (self.finds_outside and self.labels.get(ROLE_LABEL) not in DECODE_ROLES)

    def relabel(self, labels: Mapping[str, str]) -> None:
        """Replace the labels."""
        if labels.get(LABEL) != self.labels.get(LABEL):
            self.drafter = DroppedBlock(labels)
            self.use_drafter()
        if labels.get(ENDS_LABEL) != self.labels.get(ENDS_LABEL):
            self.ends = PromptEnds(labels)
            self.use_drafter()
        self.labels = labels

    def learn(self, found: Audited) -> Iterator[str]:
        """Learn from an audited answer how the engine reuses blocks; yield what changed, for people.

        Answers of an unknown rank teach nothing.
        """
        rank = self.rank(found.rank) if found.rank is not None else None
        if rank is None:
            return
        ledger = rank.ledger
        layout, block_size = ledger.layout(), ledger.block_size
        if layout is None or block_size is None:
            return
        dropped, chunk = layout.dropped, layout.slow_chunk
        if self.drafter.learn(found, dropped=dropped, block_size=block_size, chunk_blocks=chunk):
            self.use_drafter()
            yield self.drafter.meaning
        if not (layout.windows or layout.one_tree or layout.dropped):  # whose reuse ends elsewhere
            if layout.slow_chunk != self.chunks.in_use:
                self.chunks = ChunkEvidence(layout.slow_chunk)
            self.chunks.learn(found, block_size=block_size)
        if not (layout.windows or layout.dropped):
            self.ends.learn(found, block_size=block_size, unit_tokens=block_size * layout.slow_chunk)
        tiers, unit = ledger.tiers_by_events(), block_size * layout.slow_chunk
        evidence = self.resets[rank.number]
        for name in evidence.learn(found, tuple(tiers), unit_tokens=unit, n_clears=ledger.n_clears):
            ledger.emptied(tiers[name])
            yield f"rank {rank.number} has emptied its tier {name} without an event, as its answers show"

    def use_drafter(self) -> None:
        """Have all ranks reuse the end of prompts as `drafter` and `ends` say."""
        for rank in self.ranks:
            rank.ledger.set_reuse(
                self.drafter.n_blocks, is_guess=self.drafter.is_guess, whole_prompts=self.ends.said
            )

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        """Return whether it has all these labels."""
        return wanted.items() <= self.labels.items()

    def note_start(self, started: float, *, now: float) -> None:
        """Handle a new process start time as a restart, unless the event stream has just shown the same one."""
        before, self.started = self.started, started
        if before is None or started == before:
            return
        self.chunks = ChunkEvidence(self.chunks.in_use)
        for rank in self.ranks:
            if rank.reset_at < now - SAME_RESTART_S:
                rank.restarted("its process start time changed")

    def use_block_size(self, told: int | None, approximate: ApproximateConfig) -> None:
        """Use a told block size, if it is told; where blocks are learned from routing, `approximate` limits it."""
        if told is None:
            return
        for rank in self.ranks:
            learns = rank.ledger.learns_from_routing
            rank.ledger.use_block_size(approximate.block_size(told) if learns else told)

    @property
    def has_events(self) -> bool:
        """Whether any rank publishes events."""
        return any(rank.subscription for rank in self.ranks)

    def rank(self, number: int) -> Rank | None:
        """Return the rank of that number, None if the endpoint has no such rank."""
        for rank in self.ranks:  # called for every candidate of a request: faster than `next`
            if rank.number == number:
                return rank
        return None

    @property
    def trust(self) -> Trust:
        """Trust in the least trusted rank."""
        order = list(Trust)
        return max((rank.trust for rank in self.ranks), key=order.index)
