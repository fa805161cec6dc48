"""The channel of words about the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .agreement import Agreement
from .word import Word, decoded, encoded


class Words:
    """Publishes this replica's word and takes those of its siblings. Implements `channel.Channel`.

    Args:
        agreement: this replica's part.
        on_word: called after the agreement took a word, or a sibling was dropped.
    """

    def __init__(self, agreement: Agreement, on_word: Callable[[], None]) -> None:
        self._agreement, self._on_word = agreement, on_word
        self._on_change: Callable[[], None] | None = None
        self._said: Word | None = None
        """What was drained last."""

    def say(self) -> None:
        """Announce the word, if it has changed since it was drained."""
        if self._agreement.word is not self._said and self._on_change is not None:
            self._on_change()

    def listen(self, on_change: Callable[[], None]) -> None:
        """See `Channel.listen`."""
        self._on_change = on_change

    def drain(self) -> Sequence[bytes]:
        """See `Channel.drain`."""
        word = self._agreement.word
        if word is self._said:
            return ()
        self._said = word
        return (encoded(word),)

    def whole(self) -> Sequence[bytes]:
        """See `Channel.whole`."""
        return (encoded(self._agreement.word),)

    def apply(self, owner: str, payload: bytes) -> None:
        """See `Channel.apply`."""
        self._agreement.heard(owner, decoded(payload, owner))
        self._on_word()

    def replace(self, owner: str, payloads: Sequence[bytes]) -> None:
        """See `Channel.replace`."""
        for payload in payloads[-1:]:
            if payload:
                self.apply(owner, payload)

    def drop(self, owner: str) -> None:
        """See `Channel.drop`."""
        self._agreement.gone(owner)
        self._on_word()
