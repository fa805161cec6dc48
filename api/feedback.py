"""What becomes of routed requests, told to those who learn from it."""

from __future__ import annotations

import time

from .audits import audited
from .extproc.stream import AnswerBegun, Completion
from .observers import Observers
from .picker import Picker


class Feedback:
    """Hears of answers as the gateway passes them on.

    Args:
        picker: where the requests were routed.
        observers: what looks on.
    """

    def __init__(self, picker: Picker, observers: Observers) -> None:
        self._picker, self._observers = picker, observers
        self.has_come = False
        """Whether a request has ended: then a gateway sends requests here."""

    def begun(self, answer: AnswerBegun) -> None:
        """The first bytes of an answer came."""
        self._picker.answer_begun(answer.route, is_first_token=answer.is_first_token, served=answer.served)

    def ended(self, completion: Completion) -> None:
        """A request ended, routed or not."""
        self.has_come = True
        self._observers.ended(completion)
        if completion.route is None:
            return
        self._picker.answer_ended(
            completion.route,
            was_computed=completion.was_computed,
            is_hidden=completion.is_hidden,
        )
        fleet = self._picker.fleet
        if (found := audited(completion, fleet)) is not None:
            fleet.audited(found, now=time.monotonic())
            self._picker.decisions.audited(completion.route.decision, found)
