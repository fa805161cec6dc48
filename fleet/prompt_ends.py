"""The end of prompts that are held whole: engines compute the last token again, some of them with its whole block.

vLLM computes the last block again unless a slower tier has it; SGLang, whose tiers are one tree of pages, always does. Events
show which of the two an engine is (`CPU_PINNED`), so that the rule needs no setting for them. For another engine the answers
contradict the rule, and a label sets it.
"""

from __future__ import annotations

from collections.abc import Mapping

from .audit import Audited, Verdict

LABEL = "kvatlas.io/reuses-whole-prompts"
"""Label of an endpoint: `true` if its slower tiers may supply the last block of a prompt, `false` if it computes that again."""

ENOUGH = 4
"""Answers in a row that the rule does not explain, after which it is reported."""

_NO_EVIDENCE = frozenset({Verdict.TOKENIZER, Verdict.OTHER_RANK, Verdict.STALE})


class PromptEnds:
    """Reuse by one endpoint of prompts that end with a full block and are held whole.

    Args:
        labels: labels of the endpoint.

    Attributes:
        said: whether it reuses whole prompts, by its label; None without one.
        shown: the same by its answers; None while they agree with the rule.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.said = {"true": True, "false": False}.get(labels.get(LABEL, ""))
        self.shown: bool | None = None
        self._n_in_a_row = 0

    def learn(self, found: Audited, *, block_size: int, unit_tokens: int) -> None:
        """Learn from an audited answer; prompts that do not end with a full block are ignored.

        Args:
            found: the answer.
            block_size: tokens per block.
            unit_tokens: tokens that slower tiers load together.
        """
        whole = found.prompt_tokens
        slower = list(found.held.values())[1:]
        if found.verdict in _NO_EVIDENCE or not whole or whole % block_size or max(slower, default=0) < whole:
            return
        expected, reused = sum(found.expected.values()), sum(found.reused.values())
        if reused == expected:
            self._n_in_a_row, self.shown = 0, None
            return
        is_less = expected == whole and reused in (whole - block_size, whole - unit_tokens)
        is_more = expected in (whole - block_size, whole - unit_tokens) and reused == whole
        self._n_in_a_row = self._n_in_a_row + 1 if is_less or is_more else 0
        if self._n_in_a_row >= ENOUGH:
            self.shown = is_more
