"""Questions that are answered as soon as they are read, without a task, and without the application's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Scope

from .limits import QUESTIONS
from .questions import QuestionDoor


class AnswersAtOnce:
    """Implements `protocol.AtOnce`: answers a plain question that every guard admits.

    Everything else is for the application, which refuses what is refused, counts it, and writes every error.

    Args:
        door: answers.
        guards: whether each guard of the application lets a call pass, in their order.
        max_bytes: longest body.
    """

    def __init__(
        self, door: QuestionDoor, guards: Sequence[Callable[[Scope], bool]], *, max_bytes: int
    ) -> None:
        self._door, self._guards, self._max_bytes = door, guards, max_bytes

    def __call__(self, scope: Scope, body: bytes | bytearray) -> bytes | None:
        """Return the answer in JSON, None if the application is to serve the call."""
        if scope["path"] not in QUESTIONS or len(body) > self._max_bytes:
            return None
        for admits in self._guards:
            if not admits(scope):
                return None
        return self._door.at_once(scope, body)
