"""Prompts that a hybrid model has as a whole in its CPU tier: the last token is computed again, and nothing else."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.events.model import BlockStored, EngineHash, Event, MediumName
from kvatlas.fleet.table import prefix_columns
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore
from support.cores import CORES
from support.engine_recordings import atlas_of
from support.payloads import payload

SIZE, N_BLOCKS = 4, 6
TOKENS = array("I", range(SIZE * N_BLOCKS))
HASHES = tuple(EngineHash(100 + n) for n in range(N_BLOCKS))


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> IndexCore:
    return CORES[request.param]


def store(group: int, hashes: tuple[EngineHash, ...], *, medium: str = "GPU") -> BlockStored:
    """Return a store of the window group, 0, or the full one; those in the CPU tier have no tokens."""
    window = 2 * SIZE if group == 0 else None
    kind = "full_attention" if window is None else "sliding_window"
    in_gpu = medium == "GPU"
    return BlockStored(
        hashes=hashes,
        parent=None,
        tokens=TOKENS if in_gpu else array("I"),
        block_size=SIZE if in_gpu else 0,
        medium=MediumName(medium),
        group=group,
        kind=kind,
        window=window,
    )


def held_as_a_whole(core: IndexCore, n_ranks: int = 1) -> Atlas:
    atlas = atlas_of(core, n_ranks)
    slow: list[Event] = [
        store(group, (each,), medium="CPU") for group in (0, 1) for each in HASHES[4 * (1 - group) :]
    ]
    for rank in range(n_ranks):
        stores = [store(0, HASHES[-2:]), store(1, HASHES), *slow]
        atlas.apply("e", rank, core.decode_batch(payload(stores, rank=rank)))
    return atlas


@pytest.mark.parametrize(("n_tokens", "reused"), [(24, 23), (25, 24), (30, 24)])
def test_last_token_of_a_prompt_is_computed_again(n_tokens: int, reused: int, core: IndexCore) -> None:
    atlas = held_as_a_whole(core)
    prefix = atlas.prefix(array("I", range(n_tokens)))
    assert atlas.match(prefix)["e"].usable_tokens == reused
    columns = atlas.columns(prefix, ("e",))
    assert columns is not None
    assert [each.usable_tokens for each in columns.matches([0])] == [reused]
    shown = prefix_columns(columns)
    assert shown.usable_tokens.tolist() == [reused]
    match = shown[0]
    assert match is not None
    assert match.usable_tokens == reused


def test_so_it_is_on_every_rank(core: IndexCore) -> None:
    atlas = held_as_a_whole(core, n_ranks=2)
    assert dict(atlas.match(atlas.prefix(TOKENS))["e"].rank_usable_tokens) == {0: 23, 1: 23}
