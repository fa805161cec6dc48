"""Prompts of a small world as store events, for tests of saved ledgers."""

from __future__ import annotations

from array import array

from kvatlas.events.model import BlockStored, EngineHash, ExtraKey, MediumName, MultimodalKey

BLOCK = 2
N_BLOCKS = 6
TRUNKS = 3
"""Prompts that share their first two blocks."""
ROOTS: tuple[tuple[str | None, str | None], ...] = ((None, None), ("lora", None), (None, "salt"))


def tokens(trunk: int) -> array[int]:
    return array("I", [0, 1, 2, 3, *(10 * trunk + n for n in range((N_BLOCKS - 2) * BLOCK))])


def engine_hash(trunk: int, block: int, root: int) -> EngineHash:
    """Return equal hashes for equal prefixes, as an engine does."""
    return EngineHash(2**63 + 1000 * root + block if block < 2 else 1000 * root + 100 * (trunk + 1) + block)


def stored(
    trunk: int,
    first: int,
    n_blocks: int,
    *,
    medium: str = "GPU",
    root: int = 0,
    told: bool = True,
    group: int = 0,
    lookahead: int = 0,
    beside: bool = False,
) -> BlockStored:
    """Build the store event of a prompt's blocks.

    Args:
        trunk: number of the prompt.
        first: number of the first block.
        n_blocks: blocks; those after the prompt's last are left out.
        medium: name of the tier.
        root: number of adapter and salt.
        told: whether tokens are sent.
        group: KV-cache group, above 0 with a sliding window.
        lookahead: tokens after each block that are part of its hash.
        beside: whether the salt is sent beside the extra keys, as SGLang does.
    """
    last = min(first + n_blocks, N_BLOCKS)
    lora, salt = ROOTS[root]
    extras: list[tuple[ExtraKey, ...] | None] = [None] * (last - first)
    after = [*tokens(trunk)[last * BLOCK :], *[9] * lookahead][:lookahead]
    if salt and not first and not beside:
        extras[0] = (salt, MultimodalKey("image", -1))
    return BlockStored(
        hashes=tuple(engine_hash(trunk, block, root) for block in range(first, last)),
        parent=engine_hash(trunk, first - 1, root) if first and told else None,
        tokens=tokens(trunk)[first * BLOCK : last * BLOCK] if told else array("I"),
        block_size=BLOCK if told else 0,
        medium=MediumName(medium),
        lora_name=lora,
        extra_keys=tuple(extras) if told and root and not beside else None,
        salt=salt if beside else None,
        lookahead=array("I", after) if told and lookahead else None,
        group=group,
        kind="sliding_window" if group else None,
        window=3 if group else None,
    )


def foreign(trunk: int, chunk: int) -> BlockStored:
    """Build the store event of a two-block chunk with a cache library's hashes."""
    return BlockStored(
        hashes=(EngineHash(50_000 + 10 * trunk + chunk),),
        parent=EngineHash(50_000 + 10 * trunk + chunk - 1) if chunk else None,
        tokens=tokens(trunk)[chunk * 2 * BLOCK : (chunk + 1) * 2 * BLOCK],
        block_size=2 * BLOCK,
        medium=MediumName("CPU"),
    )
