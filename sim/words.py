"""Pseudo-words: meaningless text that looks like language and is the same on every machine."""

from __future__ import annotations

from functools import cache
from random import Random

_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "l", "m", "n", "r", "s")


N_WORDS = 600
"""Size of the vocabulary: small enough that the demo's tokenizer learns nearly every word as one token."""


@cache
def vocabulary() -> tuple[str, ...]:
    """Return the `N_WORDS` distinct words of all simulated text."""
    rng = Random(0)
    words: dict[str, None] = {}
    while len(words) < N_WORDS:
        syllables = (
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(1, 3))
        )
        words["".join(syllables)] = None
    return tuple(words)


def prose(rng: Random, n_words: int) -> str:
    """Generate `n_words` words in sentences, without a trailing blank."""
    words: list[str] = []
    while len(words) < n_words:
        sentence = [rng.choice(vocabulary()) for _ in range(min(rng.randint(6, 14), n_words - len(words)))]
        sentence[0] = sentence[0].capitalize()
        sentence[-1] += "."
        words += sentence
    return " ".join(words)
