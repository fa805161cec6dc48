"""Prompts that share beginnings in all usual ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from kvatlas.sim.demo_model import SPECIAL_TOKENS, VOCABULARY_SIZE
from kvatlas.sim.words import prose

from .model import BLOCK_TOKENS

Messages = tuple[dict[str, str], ...]

_N_FAMILIES = 6
_MEMORY = 24
"""Earlier prompts that may come back; more than fit in the GPU pool, about as many as fit in CPU memory."""
_LONGEST = 900
_SALTS = ("salt-a", "salt-b")
_SALTED = 0.2
_WORDS_PER_SYSTEM = (60, 150, 280)
_LONGEST_CHAT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt, as token ids or as chat messages; the other is None.

    Attributes:
        kind: how it was made, for the report.
        tokens: token ids.
        messages: chat messages.
        salt: cache salt, None without.
        reply_tokens: length of the reply to ask for.
    """

    kind: str
    tokens: tuple[int, ...] | None = None
    messages: Messages | None = None
    salt: str | None = None
    reply_tokens: int = 1


class Traffic:
    """An endless mix of new, repeated, cut and continued prompts; equal seeds and replies make equal prompts."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._families = [self._random_tokens(64, 640) for _ in range(_N_FAMILIES)]
        self._systems = [prose(self._rng, n_words) for n_words in _WORDS_PER_SYSTEM]
        self._prompts: deque[Prompt] = deque(maxlen=_MEMORY)
        self._answered: deque[Prompt] = deque(maxlen=_MEMORY)
        self._chats: deque[Prompt] = deque(maxlen=_MEMORY // 2)

    def next(self) -> Prompt:
        """Return the next prompt."""
        makers: Sequence[Callable[[], Prompt]] = (
            self._new,
            self._repeated,
            self._cut,
            self._continued,
            self._chat,
        )
        (make,) = self._rng.choices(makers, weights=(30, 15, 15, 20, 20))
        prompt = make()
        if prompt.tokens is not None:
            self._prompts.append(prompt)
        return prompt

    def answered(self, prompt: Prompt, reply: Sequence[int], text: str) -> None:
        """Keep a reply, as tokens and as text, so that later prompts continue it."""
        if prompt.tokens is not None:
            tokens = (*prompt.tokens, *reply)
            self._answered.append(Prompt(kind="answered", tokens=tokens, salt=prompt.salt))
        elif prompt.messages is not None:
            messages = (*prompt.messages, {"role": "assistant", "content": text})
            self._chats.append(Prompt(kind="answered", messages=messages, salt=prompt.salt))

    def _new(self) -> Prompt:
        """Return the beginning of a family, and text of its own."""
        family = self._rng.choice(self._families)
        cut = self._rng.randint(BLOCK_TOKENS, len(family))
        return self._of("new", family[:cut] + self._random_tokens(1, 240), self._salt())

    def _repeated(self) -> Prompt:
        """Repeat an earlier prompt."""
        if not self._prompts:
            return self._new()
        earlier = self._rng.choice(self._prompts)
        return self._of("repeated", earlier.tokens or (), earlier.salt)

    def _cut(self) -> Prompt:
        """Cut an earlier prompt at a block boundary, where the engine must compute one cached token again."""
        if not self._prompts:
            return self._new()
        earlier = self._rng.choice(self._prompts)
        tokens = earlier.tokens or ()
        n_blocks = self._rng.randint(1, max(1, len(tokens) // BLOCK_TOKENS))
        return self._of("cut at a block", tokens[: n_blocks * BLOCK_TOKENS], earlier.salt)

    def _continued(self) -> Prompt:
        """Continue an earlier prompt and its reply."""
        fitting = [earlier for earlier in self._answered if len(earlier.tokens or ()) < _LONGEST]
        if not fitting:
            return self._new()
        earlier = self._rng.choice(fitting)
        return self._of("continued", (earlier.tokens or ()) + self._random_tokens(1, 100), earlier.salt)

    def _chat(self) -> Prompt:
        """Return a chat, new or one turn longer."""
        growing = [chat for chat in self._chats if len(chat.messages or ()) < _LONGEST_CHAT]
        salt = self._salt()
        if growing and self._rng.random() < 0.7:
            chat = self._rng.choice(growing)
            before, salt = chat.messages or (), chat.salt
        else:
            before = ({"role": "system", "content": self._rng.choice(self._systems)},)
        user = {"role": "user", "content": prose(self._rng, self._rng.randint(3, 40))}
        return Prompt(kind="chat", messages=(*before, user), salt=salt, reply_tokens=self._reply_tokens())

    def _of(self, kind: str, tokens: tuple[int, ...], salt: str | None) -> Prompt:
        return Prompt(kind=kind, tokens=tokens, salt=salt, reply_tokens=self._reply_tokens())

    def _salt(self) -> str | None:
        return self._rng.choice(_SALTS) if self._rng.random() < _SALTED else None

    def _reply_tokens(self) -> int:
        return self._rng.choice((1, 2, 8, 40))

    def _random_tokens(self, fewest: int, most: int) -> tuple[int, ...]:
        n_tokens = self._rng.randint(fewest, most)
        return tuple(self._rng.choices(range(len(SPECIAL_TOKENS), VOCABULARY_SIZE), k=n_tokens))
