"""Engines whose drafter computes the last matched block of a prompt again, which events show but do not tell.

vLLM with EAGLE, EAGLE3 or MTP does so unless its block hashes cover the next tokens too. Then every prediction is one block
(or one chunk of a slower tier) too high.
"""

from __future__ import annotations

from collections.abc import Mapping

from .audit import Audited, Verdict

LABEL = "kvatlas.io/drops-last-block"
"""Label of an endpoint that says so (`true` or `false`); without it, metrics make a guess, events may
show it, and answers tell."""

ENOUGH = 4
"""Answers in a row, all wrong by exactly a block and none right, after which the rule changes."""

ENOUGH_AGAINST_GUESS = 2
"""The same while metrics alone have set the rule: they show n-gram drafters and draft models alike, which drop nothing."""


class DroppedBlock:
    """Whether one endpoint drops the last matched block, as its label says or its answers have shown.

    Args:
        labels: labels of the endpoint.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        said = labels.get(LABEL)
        self._is_said = said in ("true", "false")
        self.n_blocks: int = int(said == "true")
        """Blocks dropped: 0 or 1."""
        self._n_in_a_row, self._shown = 0, 0
        self.is_learned = False
        """Whether answers have changed what the metrics say."""
        self._is_guessed = False

    def expect(self, *, drafts: bool) -> None:
        """Guess from the engine's metrics whether a drafter runs; the label and answers outweigh it."""
        if not self._is_said and not self.is_learned:
            self.n_blocks = int(drafts)
            self._is_guessed = drafts

    @property
    def is_guess(self) -> bool:
        """Whether neither the label nor answers tell, so that events may show one where `n_blocks` is none."""
        return not (self._is_said or self.is_learned)

    @property
    def meaning(self) -> str:
        """What the rule means, for people."""
        if self.n_blocks:
            return "computes the last matched block of each prompt again, as engines with a drafter do"
        return "reuses every matched block"

    def learn(self, found: Audited, *, dropped: int, block_size: int, chunk_blocks: int) -> bool:
        """Learn from an audited answer; return whether the rule has changed.

        Args:
            found: the answer.
            dropped: blocks that the rank is expected to drop, 0 or 1; its events may have shown that since the request.
            block_size: tokens per block.
            chunk_blocks: blocks that the slower tiers load together.
        """
        if self._is_said or found.verdict is Verdict.TOKENIZER:
            return False
        error, shown = found.error_tokens, int(found.error_tokens > 0)
        if abs(error) in (block_size, chunk_blocks * block_size):
            if shown == self.n_blocks == dropped:
                return False
            self._n_in_a_row = self._n_in_a_row + 1 if shown == self._shown else 1
            self._shown = shown
        elif not error and found.expected and dropped == self.n_blocks:  # else a rank's events say otherwise
            self._n_in_a_row = 0
        if self._n_in_a_row < (ENOUGH_AGAINST_GUESS if self._is_guessed else ENOUGH):
            return False
        self.n_blocks, self._n_in_a_row, self.is_learned = self._shown, 0, True
        self._is_guessed = False
        return True
