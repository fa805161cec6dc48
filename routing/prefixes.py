"""Prompts as prefixes: their token ids as chained block keys."""

from __future__ import annotations

from array import array

from ..indexer.atlas import Atlas
from ..indexer.prefix import Prefix
from ..tokenization.model import Prompt


def prefix_of_prompt(prompt: Prompt | None, atlas: Atlas) -> Prefix | None:
    """Return the block keys of a prompt, None if it has none.

    If there is a text without token ids, its bytes make the keys: endpoints without events are learned by them.
    """
    if prompt is None:
        return None
    lora, salt = prompt.lora, prompt.cache_salt
    if prompt.tokens is not None:
        more = prompt.cut is not None
        return atlas.prefix(prompt.tokens, media=prompt.media, lora=lora, salt=salt, more=more)
    if prompt.unencoded is None or not atlas.learns_from_routing:
        return None
    return atlas.byte_prefix(prompt.unencoded, lora=lora or prompt.keyed_as or None, salt=salt)


def covering_keys(prompt: Prompt, atlas: Atlas, block_size: int) -> array[int]:
    """Return the keys of all blocks of a prompt, including a last one that is not full; none without a prompt."""
    lora, salt = prompt.lora, prompt.cache_salt
    if prompt.tokens is not None:
        prefix = atlas.prefix(prompt.tokens, media=prompt.media, lora=lora, salt=salt)
    elif prompt.unencoded is not None:
        prefix = atlas.byte_prefix(prompt.unencoded, lora=lora or prompt.keyed_as or None, salt=salt)
    else:
        return array("Q")
    return prefix.covering_keys(block_size)


def prefix_of_keys(keys: array[int], block_size: int | None, atlas: Atlas) -> Prefix:
    """Return a prefix of known keys, at the given block size or at every size in use."""
    sizes = [block_size] if block_size is not None else atlas.block_sizes
    return Prefix.from_keys(dict.fromkeys(sizes, keys))
