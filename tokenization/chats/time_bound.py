"""The time limit of one rendering.

Jinja compiles a template to Python. `compile_timed` changes this code: each loop iteration and each call of a macro, block
or recursive loop counts as a step. So does each item of filters such as `map`. The clock is read once per
`STEPS_PER_CHECK` steps. The time of a single step is not bounded; it grows with the size of its values.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from itertools import chain, compress, repeat
from types import CodeType
from typing import TYPE_CHECKING, TypeVar

from jinja2.runtime import Context

from ..errors import RenderTimeoutError

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_RENDER_S = 0.25
"""CPU time of one rendering. The golden templates take up to 0.1 s for 4,000 messages with three million characters."""

INLINE_RENDER_S = 0.02
"""The same for a chat that the event loop renders. Past it, a thread renders the chat, from its beginning."""

STEPS_PER_CHECK = 512
"""Steps between two checks of the clock. A step of an ordinary template takes 0.5 µs, a check 0.2 µs."""

_HEAD = "timed, step = context.stopwatch.timed, context.stopwatch.step;"
"""Code that defines the names for the inner functions, which are macros. They do not refer to the context: it has the
macros, and without a reference cycle it is freed, with the prompt in it, right after the rendering."""

T = TypeVar("T")

render_limit_s: ContextVar[float | None] = ContextVar("render_limit_s", default=None)
"""CPU time of each rendering that begins in the context; None for `MAX_RENDER_S`."""


class Stopwatch:
    """The time limit of one rendering."""

    __slots__ = ("_end", "_limit_s", "_steps", "_wall_end")

    def __init__(self) -> None:
        self._limit_s = render_limit_s.get() or MAX_RENDER_S
        self._wall_end = time.monotonic() + self._limit_s
        # Most renderings end before their first check. Until then only wall time is measured: reading CPU time is a system
        # call, and takes longer than such a rendering.
        self._end: float | None = None
        self._steps = STEPS_PER_CHECK  # left until the next check

    def timed(self, items: Iterable[T]) -> Iterable[T]:
        """Return the same items and count each as a step; those of a short list at once, which costs least."""
        if isinstance(items, list) and len(items) < self._steps:
            self._steps -= len(items)
            return items
        return compress(items, chain.from_iterable(iter(self._check, None)))

    def step(self) -> None:
        """Count one step.

        Raises:
            RenderTimeoutError: the time limit is exceeded.
        """
        self._steps -= 1
        if self._steps <= 0:
            self._check()

    def _check(self) -> Iterator[bool]:
        """Check the clock, and return one True per step until the next check."""
        now = time.monotonic()
        if self._end is None:
            self._end = time.thread_time() + self._wall_end - now  # CPU time so far is at most the wall time
        if now > self._wall_end and time.thread_time() > self._end:
            raise RenderTimeoutError(f"chat template took longer than {self._limit_s:g} s")
        self._steps = STEPS_PER_CHECK
        return repeat(True, STEPS_PER_CHECK)


class TimedContext(Context):
    """Template context with the time limit of its rendering."""

    def __init__(
        self,
        environment: Environment,
        parent: dict[str, object],
        name: str | None,
        blocks: dict[str, Callable[[Context], Iterator[str]]],
        globals: MutableMapping[str, object] | None = None,  # noqa: A002 - Jinja's name
    ) -> None:
        super().__init__(environment, parent, name, blocks, globals)
        self.stopwatch = Stopwatch()

    def derived(self, locals: dict[str, object] | None = None) -> Context:  # noqa: A002 - Jinja's name
        """Create a context for a part of the template, with the same time limit."""
        context = super().derived(locals)
        if isinstance(context, TimedContext):
            context.stopwatch = self.stopwatch
        return context


def compile_timed(source: str, filename: str) -> CodeType:
    """Compile the Python that Jinja generated from a template, with calls that count its steps."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            timed = ast.copy_location(ast.Name("timed", ast.Load()), node.iter)
            node.iter = ast.copy_location(ast.Call(timed, [node.iter], []), node.iter)
        elif isinstance(node, ast.FunctionDef):
            # Top-level functions get the context; nested ones use the names that these define.
            head = _HEAD if node in tree.body else ""
            node.body[:0] = [
                ast.increment_lineno(line, node.lineno - 1) for line in ast.parse(f"{head}step()").body
            ]
    return compile(tree, filename, "exec")
