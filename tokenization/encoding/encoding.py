"""What is done with a prompt's ids beside encoding a text: truncation, and the end before media."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ..errors import EncodeError
from ..model import NoPrefixReason, TextPrompt, TokenPrompt, Truncation


def texts_of(prompt: TextPrompt) -> tuple[tuple[str, bool], ...]:
    """The texts whose ids decide about those of `prompt`, each with whether the tokenizer adds what it adds."""
    whole = (prompt.text, prompt.add_special_tokens)
    if prompt.fork is not None:
        return whole, (prompt.fork, prompt.add_special_tokens)
    if prompt.truncation is not None and prompt.truncation.spares_added and prompt.add_special_tokens:
        return whole, (prompt.text, False)
    return (whole,)


def prompt_of(prompt: TextPrompt, encoded: Sequence[array[int]]) -> TokenPrompt:
    """The ids the engine computes for `prompt`; with media, those before the first media item.

    Args:
        prompt: a text.
        encoded: ids of `texts_of(prompt)`.

    Raises:
        EncodeError: the truncation leaves no room for what the tokenizer adds.
    """
    ids = encoded[0]
    if prompt.fork is not None:
        return TokenPrompt(ids[: n_common(ids, encoded[1])], cut=NoPrefixReason.MEDIA)
    if prompt.truncation is None or len(encoded) == 1:
        return TokenPrompt(shortened(ids, prompt.truncation))
    return TokenPrompt(_shortened_inside(ids, encoded[1], prompt.truncation))


def shortened(ids: array[int], truncation: Truncation | None) -> array[int]:
    """`ids` with as many cut off as the truncation wants."""
    if truncation is None or len(ids) <= truncation.n_tokens:
        return ids
    start = len(ids) - truncation.n_tokens if truncation.side == "left" else 0
    return ids[start : start + truncation.n_tokens]


def n_common(one: array[int], other: array[int]) -> int:
    """Ids at the start that two prompts have in common. Cost: O(n log n) bytes compared, far below encoding them."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shortened_inside(ids: array[int], bare: array[int], truncation: Truncation) -> array[int]:
    """`ids`, which are `bare` between what the tokenizer adds, with `bare` shortened to make room for the rest."""
    if len(ids) <= truncation.n_tokens:
        return ids
    n_added = len(ids) - len(bare)
    fronts = [n for n in range(n_added + 1) if ids[n : n + len(bare)] == bare] if n_added >= 0 else []
    if not fronts or truncation.n_tokens < n_added:
        raise EncodeError("the truncation leaves no room for what the tokenizer adds")
    front = fronts[0]
    room = Truncation(truncation.n_tokens - n_added, truncation.side)
    return ids[:front] + shortened(bare, room) + ids[front + len(bare) :]
