"""Blocks told by vLLM's connectors with one event per block: UMBP and SimpleCPUOffload."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec
import pytest

from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import CoreName
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.cores import CORES
from support.recording import read_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "other-publishers"
TIERS = (TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",)), TierSpec("disk", ("STORAGE",)))
TOKENS = array("I", range(64))


class Sample(msgspec.Struct):
    name: str
    payload_b64: bytes


SAMPLES = {sample.name: sample.payload_b64 for sample in read_lines(GOLDEN / "samples.jsonl", Sample)}


def make_atlas(core: CoreName, *, on_gpu: bool) -> Atlas:
    atlas = Atlas(tiers=TierTable(TIERS), seed=0, core=CORES[core])
    atlas.add("e")
    if on_gpu:
        hashes = tuple(map(EngineHash, range(100, 103)))
        atlas.apply("e", 0, [BlockStored(hashes, None, TOKENS[:48], 16, extra_keys=(None,) * 3)])
    else:
        atlas.ledger("e", 0).use_block_size(16)
    return atlas


@pytest.mark.parametrize("on_gpu", [True, False], ids=["known_from_gpu", "alone"])
@pytest.mark.parametrize(
    ("name", "tier", "n_blocks"),
    [("vllm-umbp", "cpu", 2), ("vllm-simple-cpu", "cpu", 2), ("vllm-simple-disk", "disk", 3)],
)
@pytest.mark.parametrize("core", CORES)
def test_single_blocks_make_a_prefix(
    core: CoreName, name: str, tier: str, n_blocks: int, *, on_gpu: bool
) -> None:
    atlas = make_atlas(core, on_gpu=on_gpu)
    atlas.apply("e", 0, CORES[core].decode_batch(SAMPLES[name]))
    match = atlas.match(atlas.prefix(TOKENS))["e"]
    assert match.tier_blocks[tier] == n_blocks
    assert (
        atlas.ledger("e", 0).chunk_blocks(TierId(TIERS.index(next(t for t in TIERS if t.name == tier)))) == 1
    )
    assert match.tier_blocks["gpu"] == (3 if on_gpu else 0)


@pytest.mark.parametrize("core", CORES)
def test_blocks_that_are_not_full_wait_and_match_nothing(core: CoreName) -> None:
    atlas = make_atlas(core, on_gpu=True)
    atlas.apply("e", 0, CORES[core].decode_batch(SAMPLES["vllm-umbp"]))
    assert atlas.ledger("e", 0).n_pending == 1
