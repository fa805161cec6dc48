"""The block size of one publisher, and its evidence."""

from __future__ import annotations


class BlockSize:
    """Tokens per block of one publisher.

    Attributes:
        certain: size shown by events, or by metrics if blocks are learned without events. All stored blocks depend on
            it; it stays until the publisher starts a new life. None without such evidence.
        expected: size from the endpoint's metrics, sufficient for queries. It survives new lives of the publisher.
        assumed: size of blocks that are learned without events while nothing else shows one. It survives new lives too.
    """

    __slots__ = ("assumed", "certain", "expected")

    def __init__(self) -> None:
        self.certain: int | None = None
        self.expected: int | None = None
        self.assumed: int | None = None

    @property
    def in_use(self) -> int | None:
        """The certain size, else the expected or the assumed one; None if there is none."""
        return self.certain or self.expected or self.assumed

    def settle(self) -> None:
        """Make the expected size certain, since no events will show one."""
        self.certain, self.expected = self.certain or self.expected, None
