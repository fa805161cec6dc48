"""An atlas that matches after each step gives the same results as one that matches for the first time.

Every change must invalidate the cached match plan: new and closed places, chunk sizes, groups, block sizes, ranks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore, index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.sources import PATIENCE_S
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.cores import CORES
from support.payloads import payload

N_BLOCKS = 8
SIZES = (2, 4, 8)
SPECS = (
    TierSpec("gpu", ("GPU",)),
    TierSpec("cpu", ("CPU",), capacity=5),
    TierSpec("storage", ("FS",), shared=True),
)
NAMES = st.sampled_from("ab")
SPACES = st.sampled_from(["", "tenant"])
RANKS = st.integers(0, 2)
MEDIA = st.sampled_from(["GPU", "GPU", "CPU", "FS", "TAPE"]).map(MediumName)
GROUPS = st.sampled_from([0, 0, 1])
KINDS = st.sampled_from([None, "full_attention", "sliding_window", "mamba", "unheard_of"])

Step = Callable[[Atlas], object]


def make_atlas(core: IndexCore) -> Atlas:
    return Atlas(tiers=TierTable(SPECS), seed=0, core=core)


def hash_of(size: int, block: int) -> EngineHash:
    return EngineHash(100 * size + block + 1)


@st.composite
def stores(draw: st.DrawFn) -> BlockStored:
    """Store some blocks of the prompt 0, 1, 2, ..."""
    size, begin, kind = draw(st.sampled_from(SIZES)), draw(st.integers(0, 4)), draw(KINDS)
    end = begin + draw(st.integers(1, 4))
    has_tokens = draw(st.booleans())
    return BlockStored(
        hashes=tuple(hash_of(size, block) for block in range(begin, end)),
        parent=hash_of(size, begin - 1) if begin and has_tokens else None,
        tokens=array("I", range(size * begin, size * end)) if has_tokens else array("I"),
        block_size=size if has_tokens else 0,
        medium=draw(MEDIA),
        group=draw(GROUPS),
        kind=kind,
        window=2 * size if kind == "sliding_window" else None,
    )


@st.composite
def removals(draw: st.DrawFn) -> BlockRemoved:
    engine_hash = hash_of(draw(st.sampled_from(SIZES)), draw(st.integers(0, 7)))
    return BlockRemoved((engine_hash,), draw(MEDIA), draw(GROUPS))


EVENTS: st.SearchStrategy[list[Event]] = st.lists(
    stores() | stores() | removals() | st.just(AllBlocksCleared()), min_size=1, max_size=4
)


class MatchedAfterEachStep(RuleBasedStateMachine):
    """Steps on one atlas per core with a match after each, beside a new atlas that takes them without matches.

    Steps on missing ranks are skipped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.atlases = [make_atlas(core) for core in CORES.values()]
        self.steps: list[Step] = []
        self.ranks: dict[str, set[int]] = {}
        self.add("a", 1, "")
        self.add("b", 2, "")

    def step(self, step: Step) -> None:
        self.steps.append(step)
        for atlas in self.atlases:
            step(atlas)

    def step_on(self, name: str, rank: int, step: Step) -> None:
        if rank in self.ranks.get(name, ()):
            self.step(step)

    @rule(name=NAMES, n_ranks=st.integers(1, 3), space=SPACES)
    def add(self, name: str, n_ranks: int, space: str) -> None:
        self.ranks[name] = set(range(n_ranks))
        self.step(lambda atlas: atlas.add(name, n_ranks=n_ranks, space=space))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.ranks.pop(name, None)
        self.step(lambda atlas: atlas.remove(name))

    @rule(name=NAMES, rank=RANKS)
    def add_or_remove_rank(self, name: str, rank: int) -> None:
        if name not in self.ranks or self.ranks[name] == {rank}:
            return
        if rank in self.ranks[name]:
            self.step(lambda atlas: atlas.remove_rank(name, rank))
        else:
            self.step(lambda atlas: atlas.add_rank(name, rank))
        self.ranks[name] ^= {rank}

    @rule(name=NAMES, rank=RANKS, events=EVENTS)
    def apply(self, name: str, rank: int, events: list[Event]) -> None:
        batch = index_core().decode_batch(payload(events))  # the native ledger takes what it can in C++
        self.step_on(name, rank, lambda atlas: atlas.apply(name, rank, batch))

    @rule(name=NAMES, events=EVENTS)
    def apply_to_the_first(self, name: str, events: list[Event]) -> None:
        self.apply(name, 0, events)

    @rule(name=NAMES, rank=RANKS)
    def reset(self, name: str, rank: int) -> None:
        self.step_on(name, rank, lambda atlas: atlas.reset(name, rank))

    @rule(name=NAMES, tier=st.sampled_from([0, 1]), bound=st.none() | st.integers(1, 6))
    def set_capacity(self, name: str, tier: int, bound: int | None) -> None:
        self.step_on(name, 0, lambda atlas: atlas.set_capacity(name, TierId(tier), bound))

    @rule(name=NAMES, rank=RANKS, size=st.sampled_from(SIZES))
    def live_without_events(self, name: str, rank: int, size: int) -> None:
        self.step_on(name, rank, lambda atlas: atlas.ledger(name, rank).without_events())
        self.tell_block_size(name, rank, size)

    @rule(name=NAMES, rank=RANKS, size=st.sampled_from(SIZES))
    def tell_block_size(self, name: str, rank: int, size: int) -> None:
        self.step_on(name, rank, lambda atlas: atlas.ledger(name, rank).use_block_size(size))

    @rule(name=NAMES, n_blocks=st.integers(1, N_BLOCKS))
    def route(self, name: str, n_blocks: int) -> None:
        self.step_on(name, 0, lambda atlas: atlas.routed(name, prompt(4 * n_blocks)))

    @rule(name=NAMES, rank=RANKS)
    def offload(self, name: str, rank: int) -> None:
        self.step_on(name, rank, lambda atlas: atlas.ledger(name, rank).offloads(now=0.0))
        self.step_on(name, rank, lambda atlas: atlas.ledger(name, rank).offloads(now=PATIENCE_S))

    @invariant()
    def agree(self) -> None:
        asked_once = make_atlas(CORES["reference"])
        for step in self.steps:
            step(asked_once)
        for n_tokens in (SIZES[0], SIZES[-1] * N_BLOCKS):
            wanted = asked_once.match(prompt(n_tokens))
            for atlas in self.atlases:
                assert atlas.match(prompt(n_tokens)) == wanted
        for atlas in self.atlases:
            stats, once = atlas.stats(), asked_once.stats()
            assert stats[1:3] == once[1:3]
            assert once.keys <= stats.keys <= stats.residencies  # ends of paths count for each holder


def prompt(n_tokens: int) -> Prefix:
    return Prefix(array("I", range(n_tokens)))


MatchedAfterEachStep.TestCase.settings = settings(stateful_step_count=40)
TestMatchedAfterEachStep = MatchedAfterEachStep.TestCase
