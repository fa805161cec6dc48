"""Feedback of routed requests: accounts, audits, and learning from response times."""

from __future__ import annotations

import time
from functools import partial

from msgspec.structs import replace

from ..fleet.audit_request import audit_request
from ..scorers.core.decision import Decision
from .outcome import Completion, ResponseBegun, ResponseNamed, Usage
from .picker import Picker
from .router import Route

SGLANG = "sglang"
"""Engine whose prefill and decode servers are asked at once, so that nobody puts the former's count into the answer."""


class Feedback:
    """Learns from responses as the gateway passes them on.

    Plugins learn from the requests of which they saw the pick: a request's callbacks go through the profile that dispatched
    it, whatever changes meanwhile.

    Args:
        picker: routed the requests.
    """

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self.has_come = False
        """Whether a request has ended: then a gateway sends requests here."""

    def begun(self, response: ResponseBegun) -> None:
        """Book the first bytes of a response, and learn from a first token."""
        route = response.route
        if route.booking is None or route.is_background:
            return
        route.booking.begun()
        for part in route.parts:
            part.booking.ended()
        for prediction in (route.prediction, *(part.prediction for part in route.parts)):
            if prediction is not None:
                self._picker.fleet.predictions.begun(prediction)
        if response.is_first_token and response.served in (None, route.addresses[0]):
            ttft_s = time.monotonic() - route.booking.at
            records = self._picker.records
            if route.profile is not None:
                records.count_faults(route.profile.answered(route.decision, ttft_s=ttft_s))
            records.first_token(route, ttft_s=ttft_s)

    def named(self, response: ResponseNamed) -> None:
        """Remember the server that may have stored a response."""
        self._picker.stored.add(response.response_id, response.address)

    def ended(self, completion: Completion) -> None:
        """Book the end of a request, routed or not, and audit what was predicted."""
        self.has_come = True
        if completion.route is not None and completion.route.is_background and completion.was_computed:
            completion = replace(completion, is_hidden=True)  # only the response has ended, not the work
        self._picker.records.ended(completion)
        if completion.route is not None:
            self._settle(completion.route, completion)
            self._audit(completion.route, completion)

    def _settle(self, route: Route, completion: Completion) -> None:
        picker = self._picker
        if route.profile is not None:
            faults = route.profile.ended(
                route.decision,
                tpot_s=completion.tpot_s,
                n_output=completion.output_tokens,
                is_refused=not completion.was_computed,
            )
            picker.records.count_faults(faults)
        predictions = picker.fleet.predictions
        parts = ((part.booking, part.prediction) for part in route.parts)
        for booking, prediction in ((route.booking, route.prediction), *parts):
            if booking is not None and completion.is_hidden:
                booking.unseen(partial(predictions.begun, prediction) if prediction is not None else None)
            elif booking is not None:
                booking.ended()
        if not completion.was_computed:
            settle = predictions.withdraw
        elif completion.response.time_to_first_byte_s is None and not completion.is_hidden:
            settle = predictions.begun  # nobody saw the response begin, but it is over
        else:
            return
        for prediction in (route.prediction, *(part.prediction for part in route.parts)):
            if prediction is not None:
                settle(prediction)

    def _audit(self, route: Route, completion: Completion) -> None:
        """Audit a request if the engine counted what it reused, and the response is the picked endpoint's."""
        usage = completion.response.usage
        if not isinstance(usage, Usage) or not completion.was_computed:
            return
        if usage.prompt_tokens is None or usage.cached_tokens is None:
            return
        fleet, decision = self._picker.fleet, route.decision
        computing = decision.computing
        if computing is not decision and not self._is_of_prefill(
            decision, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
        ):
            return
        predictions = (route.prediction, *(part.prediction for part in route.parts))
        name = computing.best.name
        found = audit_request(
            computing,
            fleet,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            prediction=next(
                (each for each in predictions if each is not None and each.endpoint == name), None
            ),
        )
        if found is not None:
            fleet.audited(found, now=time.monotonic())
            self._picker.records.audited(decision, found)

    def _is_of_prefill(self, decision: Decision, *, prompt_tokens: int, cached_tokens: int) -> bool:
        """Return whether the cached tokens in an answer can be those of the prefill server.

        Sidecars that run prefill before decode put its count into the answer. Otherwise the count is the decode server's:
        SGLang's, which are asked at once, or one of the whole prompt, which that server has received.
        """
        fleet, name = self._picker.fleet, decision.best.name
        status = fleet.scrape_status(name) if fleet.get(name) is not None else None
        if status is not None and status.engine == SGLANG:
            return False
        prefix = decision.computing.best.prefix
        if prefix is None:
            return True
        most = (prompt_tokens - 1) // prefix.block_size * prefix.block_size
        return cached_tokens <= most
