"""Decisions and audit of all replicas, and resets on all, answered by any of them."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import merge

import msgspec

from ...api.rest.answers import Numbered, OwnAnswers, PageQuery, page_of
from ...api.rest.audit_models import AuditOut, EndpointAuditOut
from ...api.rest.decision_models import DecisionsOut, DecisionSummaryOut
from ...api.rest.errors import UnavailableError
from ...api.rest.explanation import Explained
from ...api.rest.models import ResetOut
from .requests import Requests

_PAGES = msgspec.msgpack.Decoder(list[tuple[int, bytes]])
_QUERIES = msgspec.msgpack.Decoder(PageQuery)
_EXPLAINED = msgspec.msgpack.Decoder(Explained)


class Gathered:
    """Answers of this replica and its siblings together.

    Args:
        own: answers of this replica alone.
        requests: to the siblings.
    """

    def __init__(self, own: OwnAnswers, requests: Requests) -> None:
        self._own, self._requests = own, requests
        requests.handle("decisions", self._reply_decisions)
        requests.handle("decision", self._reply_decision)
        requests.handle("audit", self._reply_audit)
        requests.handle("reset", self._reply_reset)

    async def decisions(self, query: PageQuery) -> DecisionsOut:
        """See `Answers.decisions`; pages of all replicas in one order."""
        query = query._replace(limit=query.limit + 1)
        replies = await self._requests.request("decisions", msgspec.msgpack.encode(query), _page)
        newest = merge(
            self._own.newest(query), *replies.found.values(), key=lambda each: each.number, reverse=True
        )
        return page_of(list(newest), query.limit - 1, replies.missing)

    async def decision(self, request_id: str) -> Explained | None:
        """See `Answers.decision`; the newest of all replicas.

        Raises:
            UnavailableError: no replica has it, and not every one replies.
        """
        replies = await self._requests.request("decision", request_id.encode(), _explained)
        own = await self._own.decision(request_id)
        found = [each for each in (own, *replies.found.values()) if each is not None]
        if not found and replies.missing:
            missing = ", ".join(replies.missing)
            raise UnavailableError(f"no replica that answers keeps it, and {missing} did not answer")
        return max(found, key=lambda each: each.at, default=None)

    async def audit(self) -> AuditOut:
        """See `Answers.audit`; the sums over all replicas."""
        replies = await self._requests.request("audit", b"", AuditOut.model_validate_json)
        total: dict[str, EndpointAuditOut] = {}
        for each in (await self._own.audit(), *replies.found.values()):
            for endpoint in each.endpoints:
                before = total.get(endpoint.name)
                total[endpoint.name] = _sum(before, endpoint) if before is not None else endpoint
        return AuditOut(endpoints=list(total.values()), missing_replicas=list(replies.missing))

    async def reset(self, endpoint: str) -> ResetOut:
        """See `Answers.reset`; on all replicas."""
        own = await self._own.reset(endpoint)
        replies = await self._requests.request("reset", endpoint.encode(), bytes)
        return own.model_copy(update={"missing_replicas": list(replies.missing)})

    async def _reply_decisions(self, asked: bytes) -> bytes:
        newest = self._own.newest(_QUERIES.decode(asked))
        return msgspec.msgpack.encode(
            [(number, each.model_dump_json(by_alias=True).encode()) for number, each in newest]
        )

    async def _reply_decision(self, request_id: bytes) -> bytes:
        found = await self._own.decision(request_id.decode())
        return msgspec.msgpack.encode(found) if found is not None else b""

    async def _reply_reset(self, endpoint: bytes) -> bytes:
        if self._own.knows(name := endpoint.decode()):
            await self._own.reset(name)
        return b""

    async def _reply_audit(self, _: bytes) -> bytes:
        return (await self._own.audit()).model_dump_json(by_alias=True).encode()


def _page(reply: bytes) -> list[Numbered]:
    return [
        Numbered(number, DecisionSummaryOut.model_validate_json(body))
        for number, body in _PAGES.decode(reply)
    ]


def _explained(reply: bytes) -> Explained | None:
    return _EXPLAINED.decode(reply) if reply else None


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
