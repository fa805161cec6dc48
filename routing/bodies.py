"""Reading the bodies of requests: the model that replaces the client's, and the prompt."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import replace

from ..tokenization.encoding.byte_form import estimated_tokens
from ..tokenization.errors import NotReadError, RequestError
from ..tokenization.eventual import Eventual, Known, Later
from ..tokenization.model import ParsedRequest, Prompt
from ..tokenization.reading import Reader
from ..tokenization.requests.beginning import MAX_BEGINNING_BYTES, model_of_beginning
from ..tokenization.requests.cost import MAX_UNREAD_BYTES, heavy, too_complex
from ..tokenization.requests.parsers import Form, no_parser
from ..tokenization.requests.request import generates, unread_request
from .model_rewrite import ModelRules, rewrite_of
from .policy import RequestPolicy
from .priority import open_for_priority
from .refusals import MODEL_NOT_READ, unread
from .router import ModelRewrite, Overload, Refusal, RefusalCode, RoutingRequest

MAX_DIGITS = 12
"""Most digits of a content length; no body is longer."""


class ReadRequest(msgspec.Struct, frozen=True, gc=False):
    """A request whose body was read.

    Attributes:
        parsed: None if there is no body, or if it was not read because of a limit.
        unread: the model of a body that was not read, if its beginning names one; None if there was no need.
        rewrite: what changes in the request; None if nothing does.
        overload: the limit; None if there was no need.
    """

    parsed: ParsedRequest | None
    unread: Prompt | None = None
    rewrite: ModelRewrite | None = None
    overload: Overload | None = None


class BodyReader:
    """Reads bodies, long ones in a thread.

    Args:
        reader: the thread.
        rules: models that replace others if no header says so; None if there are none.
        needs_model: whether a request can only be routed if its model is known.
    """

    def __init__(self, reader: Reader, *, rules: ModelRules | None, needs_model: bool) -> None:
        self._reader, self._rules, self._needs_model = reader, rules, needs_model

    def read(self, request: RoutingRequest, policy: RequestPolicy) -> Eventual[ReadRequest | Refusal]:
        """Read the body; a request past the limits of reading is treated like one past those of the intake.

        Args:
            request: with the body.
            policy: of the configuration.
        """
        if request.overload is not None or policy.parser.is_light(request.path, request.body):
            return Known(self._read(request, policy))
        return Later(self._read_in_thread(request, policy))

    async def _read_in_thread(self, request: RoutingRequest, policy: RequestPolicy) -> ReadRequest | Refusal:
        try:
            return await self._reader.run(
                partial(self._read_within_limit, request, policy), n_bytes=len(request.body)
            )
        except NotReadError:
            return self._read(_past_limit(request), policy)

    def _read_within_limit(self, request: RoutingRequest, policy: RequestPolicy) -> ReadRequest | Refusal:
        cost, limit = policy.parser.cost(request.path, request.body), self._reader.max_cost
        if cost <= limit:
            return self._read(request, policy, is_heavy=True)
        past = self._read(_past_limit(request), policy)
        if (isinstance(past, Refusal) and past is not MODEL_NOT_READ) or len(request.body) > MAX_UNREAD_BYTES:
            return past
        try:
            return ReadRequest(unread_request(request.path, request.body, too_complex(cost, limit)))
        except RequestError as error:
            return Refusal(RefusalCode.BAD_REQUEST, str(error))

    def _read(
        self, request: RoutingRequest, policy: RequestPolicy, *, is_heavy: bool = False
    ) -> ReadRequest | Refusal:
        parser = policy.parser
        form = parser.form(request.path) if request.has_body else Form.JSON
        if form is Form.REFUSED:
            return Refusal(RefusalCode.BAD_REQUEST, no_parser(request.path))
        # Other forms have no place for a model, or none that could be changed in a few bytes.
        rewrite = rewrite_of(request, self._rules) if form is Form.JSON else None
        if isinstance(rewrite, Refusal):
            return rewrite
        if request.overload is not None:
            names_model = form in (Form.JSON, Form.WRAPPED)
            model = model_of_beginning(request.body) if names_model else ""
            if self._needs_model and names_model and not model:
                return unread(MODEL_NOT_READ, request.overload)
            prompt = Prompt(model=model, tokens=None, n_estimated=_estimated(request))
            return ReadRequest(None, prompt, rewrite, request.overload)
        if not request.has_body:
            return ReadRequest(None, rewrite=rewrite)
        body = rewrite.body if rewrite is not None else request.body
        try:
            parsed = parser.parse(request.path, body)
        except RequestError as error:
            return Refusal(RefusalCode.BAD_REQUEST, str(error))
        if policy.propagates_priority and form is Form.JSON:
            rewrite = open_for_priority(body, rewrite)
        return ReadRequest(heavy(parsed, self._reader.max_cost) if is_heavy else parsed, rewrite=rewrite)


def _past_limit(request: RoutingRequest) -> RoutingRequest:
    body = request.body
    return replace(request, body=body[:MAX_BEGINNING_BYTES], overload=Overload.READING, n_bytes=len(body))


def _estimated(request: RoutingRequest) -> int:
    """Return the tokens that a prompt is estimated to have by the length of a body of which only the beginning is there."""
    if not generates(request.path):
        return 0
    sent = request.headers.get("content-length", "")
    n_sent = int(sent) if sent.isascii() and sent.isdecimal() and len(sent) <= MAX_DIGITS else 0
    return estimated_tokens(max(len(request.body), request.n_bytes, n_sent))
