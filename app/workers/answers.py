"""Answers over REST for all workers, from whichever of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from heapq import merge
from typing import Any, TypeVar

import msgspec

from ...api.rest.answers import Numbered, OwnAnswers, PageQuery, page_of
from ...api.rest.audit_models import AuditOut, EndpointAuditOut
from ...api.rest.decision_models import DecisionsOut, DecisionSummaryOut
from ...api.rest.errors import UnavailableError
from ...api.rest.explanation import Explained
from ...api.rest.models import ChangedOut, WeightsOut
from ...configs.errors import ConfigError, Problem
from ...configs.section import PolicyName
from ...fleet.errors import ConfigRefusedError
from .request_reply import RequestReply

CHANGE_S = 5.0
"""Wait for a change, which the leader brings to every worker."""

AGREEMENT_S, POLL_S = 2.0, 0.02
"""Wait for all workers to decide by a change, and the interval between two polls of them."""


Changed = TypeVar("Changed", bound=ChangedOut)

_CHANGES: Mapping[str, Callable[[OwnAnswers, Any], Awaitable[ChangedOut]]] = {
    "weights": OwnAnswers.set_weights,
    "policy": OwnAnswers.set_policy,
    "shadow": OwnAnswers.set_shadow,
}
"""Name of a request to the leader -> the change; its argument comes as JSON."""


class _Outcome(msgspec.Struct, array_like=True):
    """Result of a change: the answer, or the reason for none."""

    answer: bytes = b""
    refused: str = ""
    file: str = ""
    problems: list[Problem] = []


class WorkersAnswers:
    """Implements `rest.answers.Answers` for all workers.

    Args:
        requests: to the other workers.
        own: answers of this worker alone.
        leader: the worker that changes the configuration of all.
    """

    def __init__(self, requests: RequestReply, own: OwnAnswers, *, leader: int) -> None:
        self._requests, self._own, self._leader = requests, own, leader
        requests.handle("decisions", self._reply_decisions)
        requests.handle("decision", self._reply_decision)
        requests.handle("audit", self._reply_audit)
        requests.handle("generation", self._reply_generation)
        if requests.worker == leader:
            for name in _CHANGES:
                requests.handle(name, partial(self._reply_change, name))

    async def decisions(self, query: PageQuery) -> DecisionsOut:
        """See `Answers.decisions`; pages of all workers in one order."""
        query = query._replace(limit=query.limit + 1)
        replies = await self._requests.request("decisions", msgspec.msgpack.encode(query))
        pages = [
            [Numbered(number, DecisionSummaryOut.model_validate_json(body)) for number, body in page]
            for page in (
                msgspec.msgpack.decode(each, type=list[tuple[int, bytes]]) for each in replies.values()
            )
        ]
        newest = merge(self._own.newest(query), *pages, key=lambda each: each.number, reverse=True)
        return page_of(list(newest), query.limit - 1, self._requests.silent(replies))

    async def decision(self, request_id: str) -> Explained | None:
        """See `Answers.decision`; the newest of all workers.

        Raises:
            UnavailableError: no worker has it, and not every worker replies.
        """
        replies = await self._requests.request("decision", request_id.encode())
        found = [msgspec.msgpack.decode(each, type=Explained) for each in replies.values() if each]
        own = await self._own.decision(request_id)
        newest = max([*found, own] if own else found, key=lambda each: each.at, default=None)
        if newest is None and (silent := self._requests.silent(replies)):
            raise UnavailableError(
                f"no worker that answers keeps it, and workers {list(silent)} do not answer"
            )
        return newest

    async def audit(self) -> AuditOut:
        """See `Answers.audit`; the sums over all workers."""
        replies = await self._requests.request("audit")
        total: dict[str, EndpointAuditOut] = {}
        for each in (await self._own.audit(), *map(AuditOut.model_validate_json, replies.values())):
            for endpoint in each.endpoints:
                before = total.get(endpoint.name)
                total[endpoint.name] = _sum(before, endpoint) if before is not None else endpoint
        return AuditOut(endpoints=list(total.values()), missing_workers=list(self._requests.silent(replies)))

    async def set_weights(self, changed: Mapping[str, object], *, force: bool = False) -> WeightsOut:  # noqa: ARG002
        """See `Answers.set_weights`; returns once every worker that replies decides by them.

        Raises:
            UnavailableError: the leader does not reply.
        """
        return await self._change("weights", changed, WeightsOut)

    async def set_policy(self, policy: PolicyName, *, force: bool = False) -> ChangedOut:  # noqa: ARG002
        """See `Answers.set_policy`; returns and raises as `set_weights`."""
        return await self._change("policy", policy, ChangedOut)

    async def set_shadow(self, policy: PolicyName | None, *, force: bool = False) -> ChangedOut:  # noqa: ARG002
        """See `Answers.set_shadow`; returns and raises as `set_weights`."""
        return await self._change("shadow", policy, ChangedOut)

    async def _change(self, name: str, value: object, answer: type[Changed]) -> Changed:
        """Have the leader change the configuration."""
        asked = json.dumps(value).encode()  # as REST took it, infinities included
        if self._requests.worker == self._leader:
            return _unpacked(await self._reply_change(name, asked), answer)
        leader = [self._leader]
        replies = await self._requests.request(
            "generation", to=leader
        )  # a leader that is gone costs one short wait
        if replies:
            replies = await self._requests.request(name, asked, to=leader, timeout_s=CHANGE_S)
        if not replies:
            raise UnavailableError(
                f"worker {self._leader}, which changes {name} for all, does not answer; see with GET /v1/config "
                "what is in force, and try again"
            )
        return _unpacked(replies[self._leader], answer)

    async def _reply_decisions(self, asked: bytes) -> bytes:
        newest = self._own.newest(msgspec.msgpack.decode(asked, type=PageQuery))
        return msgspec.msgpack.encode(
            [(number, each.model_dump_json(by_alias=True).encode()) for number, each in newest]
        )

    async def _reply_decision(self, request_id: bytes) -> bytes:
        found = await self._own.decision(request_id.decode())
        return msgspec.msgpack.encode(found) if found is not None else b""

    async def _reply_audit(self, _: bytes) -> bytes:
        return (await self._own.audit()).model_dump_json(by_alias=True).encode()

    async def _reply_change(self, name: str, asked: bytes) -> bytes:
        """Change the configuration, as the leader."""
        try:
            answer = await _CHANGES[name](self._own, json.loads(asked))
        except ConfigError as error:
            return msgspec.msgpack.encode(_Outcome(file=error.file, problems=list(error.problems)))
        except ConfigRefusedError as error:
            return msgspec.msgpack.encode(_Outcome(refused=str(error)))
        missing = await self._behind(msgspec.msgpack.encode(answer.generation))
        answer = answer.model_copy(update={"missing_workers": missing})
        return msgspec.msgpack.encode(_Outcome(answer.model_dump_json(by_alias=True).encode()))

    async def _behind(self, generation: bytes) -> list[int]:
        """Return the workers that do not confirm the generation in time."""
        end = time.monotonic() + AGREEMENT_S
        while True:
            replies = await self._requests.request("generation")
            agreeing = {worker for worker, each in replies.items() if each == generation}
            behind = list(self._requests.silent(agreeing))
            if not behind or time.monotonic() > end:
                return behind
            await asyncio.sleep(POLL_S)

    async def _reply_generation(self, _: bytes) -> bytes:
        return msgspec.msgpack.encode(self._own.generation)


def _unpacked(reply: bytes, answer: type[Changed]) -> Changed:
    outcome = msgspec.msgpack.decode(reply, type=_Outcome)
    if outcome.problems:
        raise ConfigError(outcome.file, outcome.problems)
    if outcome.refused:
        raise ConfigRefusedError(outcome.refused)
    return answer.model_validate_json(outcome.answer)


def _sum(one: EndpointAuditOut, other: EndpointAuditOut) -> EndpointAuditOut:
    return EndpointAuditOut(
        name=one.name,
        requests=one.requests + other.requests,
        verdicts=_added(one.verdicts, other.verdicts),
        expected_tokens=_added(one.expected_tokens, other.expected_tokens),
        reused_tokens=_added(one.reused_tokens, other.reused_tokens),
        over_tokens=one.over_tokens + other.over_tokens,
        under_tokens=one.under_tokens + other.under_tokens,
        credit=min(one.credit, other.credit),
    )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {
        key: one.get(key, 0) + other.get(key, 0)
        for key in (*one, *(each for each in other if each not in one))
    }
