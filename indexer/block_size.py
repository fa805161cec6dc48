"""How many tokens a block of one publisher has, and how surely that is known."""

from __future__ import annotations


class BlockSize:
    """What one publisher's blocks are counted by.

    Attributes:
        certain: shown by events, or told where blocks are learned without them; stays until the publisher begins a new
            life. Whatever is kept rests on it. None while there is no such evidence.
        expected: told of the endpoint from beside its events; enough to ask by. Outlives the publisher's life.
    """

    __slots__ = ("certain", "expected")

    def __init__(self) -> None:
        self.certain: int | None = None
        self.expected: int | None = None

    @property
    def in_use(self) -> int | None:
        """The certain one, else the expected one; None when nothing is known."""
        return self.certain or self.expected

    def settle(self) -> None:
        """No events will show one: what is expected is certain."""
        self.certain, self.expected = self.in_use, None
