"""Bound of the log lines about one thing that happens again and again."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINES = 5
"""Lines at once; a restart of an engine, or of a network, needs one."""

LINE_S = 60.0
"""Time after which one more line may be logged."""


@dataclass(slots=True)
class LineLimit:
    """Lines that may still be logged, and those that were not.

    Attributes:
        n_free: lines that may be logged now, as of `at`.
        at: monotonic seconds of the last line that was wanted.
        n_left_out: lines that were not logged since the last one.
    """

    n_free: float = MAX_LINES
    at: float = 0.0
    n_left_out: int = 0

    def line(self, now: float) -> str | None:
        """Return what to append to the next line, usually nothing; None if it is not to be logged.

        Args:
            now: monotonic seconds.
        """
        self.n_free, self.at = min(MAX_LINES, self.n_free + (now - self.at) / LINE_S), now
        if self.n_free < 1.0:
            self.n_left_out += 1
            return None
        self.n_free -= 1.0
        n_left_out, self.n_left_out = self.n_left_out, 0
        if n_left_out:
            return f" ({n_left_out} such lines since the last one were not logged)"
        return (
            " (it comes often: such lines are logged once a minute from now on)" if self.n_free < 1.0 else ""
        )
