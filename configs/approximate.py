"""Section for endpoints whose blocks are known from the requests sent there, because they send no events."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .section import BlockCount, Section

Limit = Annotated[int, Meta(ge=0)]
BlockSize = Annotated[int, Meta(ge=1, lt=2**31)]


class ApproximateConfig(Section, frozen=True):
    """Blocks of endpoints that send no events. Names and defaults are those of the reference's approximate producer."""

    auto_tune: bool = True
    """Whether the sizes in an engine's `/metrics` take precedence over those below."""
    block_size_tokens: BlockSize = 16
    """Tokens per block."""
    min_block_size_tokens: BlockSize = 1
    """Least tokens per block, whatever the engine or `blockSizeTokens` say; the reference's files without tokenizer set 64."""
    lru_capacity_per_server: BlockCount = 31_250
    """Blocks of a server in the fastest tier, unless `tiers` gives a number."""
    max_prefix_tokens_to_match: Limit = 0
    """Longest prefix of a prompt without token ids that is matched, in tokens; 0: see `maxPrefixBlocksToMatch`."""
    max_prefix_blocks_to_match: Limit = 0
    """The same in blocks; 0 for no limit."""

    def block_size(self, told: int | None) -> int:
        """Return the tokens per block of an endpoint whose engine tells `told`, None for nothing."""
        size = told if self.auto_tune and told is not None else self.block_size_tokens
        return max(size, self.min_block_size_tokens)

    def capacity(self, n_blocks: int | None, told: int | None) -> int:
        """Return the blocks of an endpoint in the fastest tier.

        Args:
            n_blocks: blocks that its engine tells, None for nothing.
            told: tokens of each of them; None if it does not tell them.
        """
        if not self.auto_tune or n_blocks is None:
            return self.lru_capacity_per_server
        size = self.block_size(told)
        return max(1, n_blocks * (told or size) // size)
