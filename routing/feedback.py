"""What becomes of routed requests, told to those who learn from it."""

from __future__ import annotations

import time

from ..fleet.audit_request import audit_request
from ..scorers.core.decision import Decision
from .observers.observers import Observers
from .outcome import AnswerBegun, Completion, Usage
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
        self._audit(completion.route.decision, completion)

    def _audit(self, decision: Decision, completion: Completion) -> None:
        """Audit a request if the engine counted what it reused, and the response is the picked endpoint's."""
        usage = completion.answer.usage
        if not completion.was_computed or not isinstance(usage, Usage):
            return
        if usage.prompt_tokens is None or usage.cached_tokens is None:
            return
        fleet = self._picker.fleet
        found = audit_request(
            decision, fleet, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
        )
        if found is not None:
            fleet.audited(found, now=time.monotonic())
            self._picker.decisions.audited(decision, found)
