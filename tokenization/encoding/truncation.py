"""Truncation of a prompt's ids, as requested and before the first media item."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ..errors import EncodeError
from ..model import NoPrefixReason, TextPrompt, TokenPrompt, Truncation


def texts_of(prompt: TextPrompt) -> tuple[tuple[str, bool], ...]:
    """Return the texts whose ids `prompt_of` needs, each with whether the tokenizer adds its special tokens."""
    whole = (prompt.text, prompt.add_special_tokens)
    if prompt.fork is not None:
        return whole, (prompt.fork, prompt.add_special_tokens)
    if prompt.truncation is not None and prompt.truncation.spares_added and prompt.add_special_tokens:
        return whole, (prompt.text, False)
    return (whole,)


def prompt_of(prompt: TextPrompt, encoded: Sequence[array[int]]) -> TokenPrompt:
    """Return the engine's ids for `prompt`; if it has media, those before the first media item.

    Args:
        prompt: a text.
        encoded: ids of `texts_of(prompt)`.

    Raises:
        EncodeError: the truncation leaves no room for the special tokens that the tokenizer adds.
    """
    ids = encoded[0]
    if prompt.fork is not None:
        return TokenPrompt(ids[: n_common(ids, encoded[1])], cut=NoPrefixReason.MEDIA)
    if prompt.truncation is None:
        return TokenPrompt(ids)
    if len(encoded) == 1:
        return TokenPrompt(shortened(ids, prompt.truncation))
    return TokenPrompt(_shortened_inside(ids, encoded[1], prompt.truncation))


def shortened(ids: array[int], truncation: Truncation | None) -> array[int]:
    """Apply a truncation to `ids`."""
    if truncation is None or len(ids) <= truncation.n_tokens:
        return ids
    start = len(ids) - truncation.n_tokens if truncation.side == "left" else 0
    return ids[start : start + truncation.n_tokens]


def n_common(one: array[int], other: array[int]) -> int:
    """Count the leading ids that two prompts share. Cost: O(n log n) compared bytes, far below encoding them."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shortened_inside(ids: array[int], bare: array[int], truncation: Truncation) -> array[int]:
    """Shorten `bare`, which is `ids` without the tokenizer's special tokens, to make room for these tokens."""
    if len(ids) <= truncation.n_tokens:
        return ids
    n_added = len(ids) - len(bare)
    fronts = [n for n in range(n_added + 1) if ids[n : n + len(bare)] == bare] if n_added >= 0 else []
    if not fronts or truncation.n_tokens < n_added:
        raise EncodeError("the truncation leaves no room for the tokenizer's special tokens")
    front = fronts[0]
    room = Truncation(truncation.n_tokens - n_added, truncation.side)
    return ids[:front] + shortened(bare, room) + ids[front + len(bare) :]
