"""Results that are often known at once, so that most requests cost no task and no turn of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
E = TypeVar("E", bound=Exception)
P = ParamSpec("P")


class Known(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """A result that is there already.

    Attributes:
        value: the result.
    """

    value: T_co

    def map(self, step: Callable[[T_co], U]) -> Known[U]:
        """Return the result of `step`."""
        return Known(step(self.value))

    def then(self, step: Callable[[T_co], Eventual[U]]) -> Eventual[U]:
        """Return the result of `step`, which may have to be awaited."""
        return step(self.value)

    def __await__(self) -> Generator[Any, None, T_co]:
        yield from ()  # makes this a generator, as `await` needs one
        return self.value


class Later(msgspec.Struct, Generic[T_co], frozen=True):
    """A result to await, exactly once.

    Attributes:
        coroutine: returns the result.
    """

    coroutine: Coroutine[Any, Any, T_co]

    def map(self, step: Callable[[T_co], U]) -> Later[U]:
        """Apply `step` to the result, without a pause between the two."""

        async def mapped() -> U:
            return step(await self.coroutine)

        return Later(mapped())

    def then(self, step: Callable[[T_co], Eventual[U]]) -> Later[U]:
        """Apply `step` to the result, and wait for what it returns."""

        async def followed() -> U:
            return await step(await self.coroutine)

        return Later(followed())

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.coroutine.__await__()


Eventual: TypeAlias = Known[T] | Later[T]
"""A result, known at once or awaited. `await` works on both."""


def recovered(
    errors: type[E] | tuple[type[E], ...],
    instead: Callable[[E], T],
    start: Callable[P, Eventual[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Eventual[T]:
    """Call `start`, with another result in place of an error.

    Args:
        errors: those to replace, raised by `start` or by what it returns.
        instead: makes the result from the error.
        start: begins the work.
        args: of `start`.
        kwargs: of `start`.
    """
    try:
        outcome = start(*args, **kwargs)
    except errors as error:
        return Known(instead(error))
    if isinstance(outcome, Known):
        return outcome

    async def guarded() -> T:
        try:
            return await outcome
        except errors as error:
            return instead(error)

    return Later(guarded())
