"""The bound on the time of one rendering.

Jinja turns a template into Python. In that Python every loop takes its items through a stopwatch, and every function
reports to it: macros, blocks and recursive loops are functions. So do filters that call another one for each item. The clock
is looked at after `STEPS_PER_LOOK` of these steps. A single step is not bounded; what it can do grows with its values.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import chain, compress, repeat
from types import CodeType
from typing import TYPE_CHECKING, TypeVar

from jinja2.runtime import Context

from ..errors import RenderError

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_RENDER_S = 0.25
"""CPU time of one rendering. The golden templates take up to 0.1 s for a chat of 4,000 messages, three million characters."""

STEPS_PER_LOOK = 512
"""A step of an ordinary template takes 0.5 µs, a look 0.2 µs."""

_HEAD = "timed, step = context.stopwatch.timed, context.stopwatch.step;"
"""Names that macros take from the function around them. They do not lead to the context, which has the macros: it is freed
with the last name for it, as the prompt in it should be."""

T = TypeVar("T")


class Stopwatch:
    """The time of one rendering."""

    __slots__ = ("_end", "_steps", "_wall_end")

    def __init__(self) -> None:
        # The clock on the wall is read ten times faster than CPU time, and shows no less.
        self._wall_end, self._end = time.monotonic() + MAX_RENDER_S, time.thread_time() + MAX_RENDER_S
        self._steps = STEPS_PER_LOOK  # left until the next look

    def timed(self, items: Iterable[T]) -> Iterable[T]:
        """The same items, each a step. Those of a short list are counted before they are taken, which costs least."""
        if isinstance(items, list) and len(items) < self._steps:
            self._steps -= len(items)
            return items
        return compress(items, chain.from_iterable(iter(self._look, None)))

    def step(self) -> None:
        """Count one step.

        Raises:
            RenderError: the time is up.
        """
        self._steps -= 1
        if self._steps <= 0:
            self._look()

    def _look(self) -> Iterator[bool]:
        """As many times True as there are steps until the next look."""
        if time.monotonic() > self._wall_end and time.thread_time() > self._end:
            raise RenderError(f"chat template took longer than {MAX_RENDER_S:g} s")
        self._steps = STEPS_PER_LOOK
        return repeat(True, STEPS_PER_LOOK)


class TimedContext(Context):
    """What a template sees while it renders, and the time it has for that."""

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
        """A context for a part of the template, with the same time."""
        context = super().derived(locals)
        if isinstance(context, TimedContext):
            context.stopwatch = self.stopwatch
        return context


def compile_timed(source: str, filename: str) -> CodeType:
    """Code of the Python that Jinja made of a template, with its steps."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            timed = ast.copy_location(ast.Name("timed", ast.Load()), node.iter)
            node.iter = ast.copy_location(ast.Call(timed, [node.iter], []), node.iter)
        elif isinstance(node, ast.FunctionDef):
            # Functions with a context of their own hold all others, which see their names.
            head = _HEAD if node in tree.body else ""
            node.body[:0] = [
                ast.increment_lineno(line, node.lineno - 1) for line in ast.parse(f"{head}step()").body
            ]
    return compile(tree, filename, "exec")
