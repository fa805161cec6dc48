"""The native ledger has the same state as the Python ones, for events in any form and order."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import astuple, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    ExtraKey,
    MediumName,
    MultimodalKey,
)
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE, IndexCore, index_core
from kvatlas.indexer.hashmap import SLACK
from kvatlas.indexer.ledger import RankLedger
from kvatlas.indexer.sources import PATIENCE_S
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.payloads import Form, payload

CORES = (REFERENCE, index_core())
BLOCK = 2
N_BLOCKS = 6
ENDPOINTS = ("a", "b")
PROMPTS = [
    array("I", [1 + (number >> block & 1) for block in range(N_BLOCKS) for _ in range(BLOCK)])
    for number in range(8)
]
TIERS = [
    TierSpec("gpu", ("GPU",)),
    TierSpec("cpu", ("CPU",)),
    TierSpec("storage", ("FS",), shared=True, capacity=40),
    TierSpec("disk", ("DISK",), chunk_blocks=2, cleared_on_reset=True),
]  # fmt: skip


KINDS: list[tuple[str | None, int | None]] = [
    ("full_attention", None), ("sliding_window", 4), ("mamba", None), ("odd", None), (None, 4),
]  # fmt: skip


def engine_hash(prompt: int, block: int, base: int) -> EngineHash:
    """Return equal hashes for equal prefixes, as engines do."""
    return EngineHash(1 + base * 10_000 + (block << 8 | prompt & (1 << block + 1) - 1))


@st.composite
def stores(draw: st.DrawFn) -> BlockStored:
    """Draw blocks of a prompt: mostly as an engine sends them, sometimes without tokens, out of order or unusual."""
    prompt, base = draw(st.integers(0, len(PROMPTS) - 1)), draw(st.sampled_from([0, 0, 0, 1]))
    first = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    n_blocks = draw(st.integers(0 if first else 1, N_BLOCKS - first))
    medium = draw(st.sampled_from(["GPU", "GPU", "GPU", "gpu", "CPU", "CPU", "FS", "DISK", "NVME"]))
    told = draw(st.sampled_from(["tokens"] * 6 + ["nothing", "nothing", "half", "chunk"]))
    tokens = PROMPTS[prompt][first * BLOCK : (first + n_blocks) * BLOCK]
    hashes = tuple(engine_hash(prompt, block, base) for block in range(first, first + n_blocks))
    if told == "chunk":
        hashes = hashes[1::2]
    if told == "nothing":
        tokens = array("I")
    lora = draw(st.sampled_from([None, None, None, "adapter"]))
    kind, window = draw(st.sampled_from([(None, None)] * 6 + KINDS))
    after = [*PROMPTS[prompt][(first + n_blocks) * BLOCK :], 9, 9, 9]
    n_lookahead = draw(st.sampled_from([0, 0, 0, 1, 3])) if told == "tokens" and n_blocks else 0
    return BlockStored(
        hashes=hashes,
        parent=engine_hash(prompt, first - 1, base) if first and told != "nothing" else None,
        tokens=tokens[:-1] if told == "half" else tokens,
        block_size=0 if told == "nothing" else 2 * BLOCK if told == "chunk" else BLOCK,
        medium=MediumName(medium),
        lora_name=lora,
        extra_keys=draw(st.none() | extras(len(hashes), lora)),
        group=1 if kind else draw(st.sampled_from([0] * 9 + [1])),
        kind=kind,
        window=window,
        lookahead=array("I", after[:n_lookahead]) if n_lookahead else None,
    )


def extras(n_blocks: int, lora: str | None) -> st.SearchStrategy[tuple[tuple[ExtraKey, ...] | None, ...]]:
    plain = [(lora,) if lora else None] * n_blocks
    salted = [("salt", lora) if lora else ("salt",), *plain[1:]] if n_blocks else []
    with_image = [*plain[1:], (MultimodalKey("image", -1),)] if n_blocks else []
    return st.sampled_from([tuple(plain), tuple(plain), tuple(salted), tuple(with_image)])


@st.composite
def removals(draw: st.DrawFn) -> BlockRemoved:
    prompt, base = draw(st.integers(0, len(PROMPTS) - 1)), draw(st.sampled_from([0, 0, 1]))
    blocks = draw(st.lists(st.integers(0, N_BLOCKS - 1), max_size=4))
    return BlockRemoved(
        tuple(engine_hash(prompt, block, base) for block in blocks),
        MediumName(draw(st.sampled_from(["GPU", "GPU", "CPU", "FS", "DISK"]))),
        draw(st.sampled_from([0, 0, 0, 1])),
    )


EVENT = st.integers(0, 30).flatmap(
    lambda n: st.builds(AllBlocksCleared) if n == 30 else removals() if n >= 22 else stores()
)
EVENTS = st.lists(EVENT, min_size=1, max_size=20)
ENDPOINT = st.sampled_from(ENDPOINTS)
TIER = st.sampled_from([TierId(0), TierId(1), TierId(3)])


def books(ledger: RankLedger) -> object:
    """Return the visible state of a ledger."""
    sizes = (ledger.n_pending, ledger.hashes.n_parked, ledger.hashes.n_dropped, ledger.block_size)
    layout = ledger.layout()
    shape = layout and (layout.chunks, [window.n_blocks for window in layout.windows])
    return astuple(ledger.counters), sizes, ledger.hashes.table.columns(), shape


class NativeAgainstReference(RuleBasedStateMachine):
    """Atlases of all cores under the same payloads and calls."""

    def __init__(self) -> None:
        super().__init__()
        self.atlases = [Atlas(tiers=TierTable(TIERS), seed=7, core=core) for core in CORES]
        self.now = 0.0
        for endpoint in ENDPOINTS:
            for atlas in self.atlases:
                atlas.add(endpoint)

    @rule(
        endpoint=ENDPOINT,
        batches=st.lists(EVENTS, min_size=1, max_size=5),
        form=st.sampled_from(["map", "array"]),
    )
    def apply(self, endpoint: str, batches: Sequence[Sequence[Event]], form: Form) -> None:
        for message in [payload(events, form=form) for events in batches]:
            for core, atlas in zip(CORES, self.atlases, strict=True):
                atlas.apply(endpoint, 0, core.decode_batch(message))

    @rule(endpoint=ENDPOINT, events=EVENTS)
    def apply_values(self, endpoint: str, events: Sequence[Event]) -> None:
        for atlas in self.atlases:
            atlas.apply(endpoint, 0, events)

    @rule(endpoint=ENDPOINT, prompt=st.sampled_from(PROMPTS))
    def route(self, endpoint: str, prompt: array[int]) -> None:
        for atlas in self.atlases:
            atlas.routed(endpoint, atlas.prefix(prompt))

    @rule(endpoint=ENDPOINT, tier=TIER, n_blocks=st.none() | st.integers(1, 20))
    def set_capacity(self, endpoint: str, tier: TierId, n_blocks: int | None) -> None:
        for atlas in self.atlases:
            atlas.set_capacity(endpoint, tier, n_blocks)

    @rule(
        endpoint=ENDPOINT,
        how=st.sampled_from(["offloads", "offloads", "offloads", "told", "no events", "new life", "gone"]),
    )
    def change(self, endpoint: str, how: str) -> None:
        self.now += 3
        for atlas in self.atlases:
            ledger = atlas.ledger(endpoint, 0)
            match how:
                case "offloads":
                    ledger.offloads(now=self.now)
                case "told":
                    ledger.use_block_size(2 * BLOCK)
                case "no events":
                    ledger.without_events()
                    ledger.use_block_size(BLOCK)
                case "new life":
                    atlas.reset(endpoint, 0)
                case _:
                    atlas.add(endpoint)

    @invariant()
    def agree(self) -> None:
        one, other = self.atlases
        for endpoint in ENDPOINTS:
            assert books(other.ledger(endpoint, 0)) == books(one.ledger(endpoint, 0))
            assert other.occupancy(endpoint) == one.occupancy(endpoint)
        for prompt in PROMPTS[::3]:
            assert other.match(other.prefix(prompt)) == one.match(one.prefix(prompt))


NativeAgainstReference.TestCase.settings = settings(stateful_step_count=25)
TestNativeAgainstReference = NativeAgainstReference.TestCase


def stream(n_events: int, *, n_blocks: int, first: int = 0) -> list[BlockStored]:
    """Yield distinct prompts of `n_blocks` each."""
    return [
        BlockStored(
            hashes=tuple(EngineHash(1 + (number * n_blocks + block)) for block in range(n_blocks)),
            parent=None,
            tokens=array("I", [number] * (n_blocks * BLOCK)),
            block_size=BLOCK,
        )
        for number in range(first, first + n_events)
    ]


@pytest.mark.parametrize("lookahead", [None, array("I", [7]), array("I", [7, 8])])
def test_plain_events_do_not_pass_through_python_when_one_of_their_kind_has(
    monkeypatch: pytest.MonkeyPatch, lookahead: array[int] | None
) -> None:
    core = index_core("native")
    atlas = Atlas(tiers=TierTable(TIERS), seed=0, core=core)
    atlas.add("a")
    offload = [
        BlockStored(event.hashes[:1], None, array("I"), 0, MediumName("CPU"))
        for event in stream(3, n_blocks=2)
    ]
    first, *later = (replace(event, lookahead=lookahead) for event in stream(3, n_blocks=2))
    atlas.apply("a", 0, core.decode_batch(payload([first, *offload[:1]])))
    monkeypatch.setattr(RankLedger, "_apply_at", None)
    atlas.apply("a", 0, core.decode_batch(payload([*later, *offload[1:], BlockRemoved(later[0].hashes)])))
    assert [row.residencies for row in atlas.occupancy("a")][:2] == [4, 3]


def test_chunk_that_is_named_by_its_tail_leaves_whole_though_single_blocks_came_there_before() -> None:
    for core in CORES:
        atlas = Atlas(tiers=TierTable(TIERS), seed=0, core=core)
        atlas.add("a")
        first, second = stream(2, n_blocks=4)
        tail, cpu = second.hashes[-1:], MediumName("CPU")
        for event in (
            first,
            second,
            replace(first, medium=cpu),  # tells that chunks are of four blocks
            BlockStored(tail, None, array("I"), 0, cpu),
        ):
            atlas.apply("a", 0, core.decode_batch(payload([event])))
        assert atlas.occupancy("a")[1].residencies == 8
        atlas.apply("a", 0, core.decode_batch(payload([BlockRemoved(tail, cpu)])))
        assert atlas.occupancy("a")[1].residencies == 4, core.name


def test_old_hashes_without_blocks_are_forgotten_in_the_same_order() -> None:
    tables: list[object] = []
    for core in CORES:
        atlas = Atlas(tiers=TierTable(TIERS), seed=0, core=core)
        atlas.add("a")
        atlas.set_capacity("a", TierId(0), 600)
        for number in range(0, 300, 10):
            atlas.apply("a", 0, core.decode_batch(payload(stream(10, n_blocks=100, first=number))))
            if number == 150:
                atlas.apply("a", 0, stream(10, n_blocks=100, first=number + 1000))
        columns = atlas.ledger("a", 0).hashes.table.columns()
        assert len(columns.hashes) <= SLACK + 2 * 600
        tables.append(columns)
    assert tables[0] == tables[1]


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_inferred_blocks_of_a_shared_tier_are_those_of_every_server(core: IndexCore) -> None:
    tiers = TierTable([TierSpec("gpu", ("GPU",)), TierSpec("store", ("FS",), shared=True)])
    atlas = Atlas(tiers=tiers, seed=0, core=core)
    for name in ENDPOINTS:
        atlas.add(name)
        atlas.ledger(name, 0).use_block_size(BLOCK)
    ledger = atlas.ledger("a", 0)
    ledger.offloads(now=0)
    ledger.offloads(now=PATIENCE_S)
    for block in range(N_BLOCKS):
        parent = engine_hash(0, block - 1, 0) if block else None
        tokens = PROMPTS[0][block * BLOCK : (block + 1) * BLOCK]
        event = BlockStored((engine_hash(0, block, 0),), parent, tokens, BLOCK)
        atlas.apply("a", 0, core.decode_batch(payload([event])))

    held = atlas.match(atlas.prefix(PROMPTS[0]))["b"].held
    assert held.tier_blocks == (0, N_BLOCKS)
    assert [row.residencies for row in atlas.occupancy("b")] == [0, N_BLOCKS]
    assert ledger.residencies(TierId(1)) == 0
