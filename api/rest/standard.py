"""The standard index contract: where a prompt's blocks are, in tokens, by tenant and instance.

Source: Mooncake RFC #1403, as also served by Dynamo's standalone indexer.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
from fastapi import APIRouter, Response

from ...fleet.endpoint import Endpoint
from ...fleet.fleet import Fleet
from ...fleet.instance import DEFAULT_TENANT
from ...fleet.registered import Registry
from ...indexer.atlas import keys_of
from ...indexer.keys import chain_keys
from ...indexer.match import PrefixMatch
from ...routing.prefixes import prefix_of_keys
from ...tokenization.errors import NotReadError
from ...tokenization.reading import Reader
from .errors import BadRequestError, UnavailableError
from .models import InstanceMatch, QueryByHashRequest, QueryRequest
from .question_bodies import JSON
from .questions import Question

CHAINED_AT_ONCE = 4096
"""Local hashes that the event loop chains itself: 1.5 ms."""

Answer = dict[str, dict[str, InstanceMatch]]
"""The description of the answer, by tenant and instance."""

_encode = msgspec.json.Encoder().encode


class _Match(msgspec.Struct, frozen=True, gc=False):
    """An `InstanceMatch` that is written and not checked."""

    longest_matched: int
    GPU: int
    CPU: int
    DISK: int
    DP: dict[str, int]


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Names that the `model` of a query may have.

    Attributes:
        configured: names of the configured model, empty when none are configured.
        registry: knows the models of registered instances.
    """

    configured: frozenset[str]
    registry: Registry

    def is_adapter(self, asked: str | None) -> bool:
        """Return whether `asked` names an adapter of the configured model: it is no model's name."""
        return bool(asked and self.configured) and asked not in self.configured | self.registry.models

    def served(self, own: str | None, asked: str | None) -> bool:
        """Return whether an endpoint serves `asked`; `own` is its model, None for the configured one."""
        if asked is None or own == asked:
            return True
        if own is None:
            return not self.configured or asked in self.configured or asked not in self.registry.models
        return own in self.configured and asked in self.configured


class StandardQueries:
    """Answers `/query` and `/query_by_hash`.

    Args:
        fleet: the endpoints.
        names: decides which of them are meant.
        reader: thread that chains long lists of hashes.
    """

    def __init__(self, fleet: Fleet, names: ModelNames, reader: Reader) -> None:
        self._fleet, self._names, self._reader = fleet, names, reader

    async def by_tokens(self, request: QueryRequest, _n_bytes: int = 0) -> Response:
        """Return the tokens of the prompt that each instance holds, by tenant."""
        fleet, names = self._fleet, self._names
        adapter = request.model if names.is_adapter(request.model) else None
        tokens = array("I", request.token_ids)
        lora, salt = request.lora_name or adapter, request.cache_salt
        wanted = _wanted(fleet, request, names)
        matches = fleet.atlas.match(fleet.atlas.prefix(tokens, lora=lora, salt=salt))
        if salt and any(endpoint.instance.salt == salt for endpoint in wanted):
            unsalted = fleet.atlas.match(fleet.atlas.prefix(tokens, lora=lora))
            matches |= {
                e.name: unsalted[e.name] for e in wanted if e.instance.salt == salt and e.name in unsalted
            }
        return _answer(wanted, matches, request.tenant_id)

    async def by_hashes(self, request: QueryByHashRequest, _n_bytes: int = 0) -> Response:
        """Return the same from block hashes.

        Raises:
            BadRequestError: neither list is given, or both.
            UnavailableError: they are many, and were not chained in time.
        """
        fleet = self._fleet
        if (request.seq_hashes is None) == (request.block_hashes is None):
            raise BadRequestError("give either seq_hashes (chained) or block_hashes (local), not both")
        if request.seq_hashes is not None:
            keys = keys_of(request.seq_hashes)
        else:
            keys = await _chained(keys_of(request.block_hashes or ()), fleet.atlas.seed, self._reader)
        matches = fleet.atlas.match(prefix_of_keys(keys, request.block_size, fleet.atlas))
        return _answer(_wanted(fleet, request, self._names), matches, request.tenant_id)

    @property
    def questions(self) -> dict[str, Question]:
        """Both, for the door."""
        return {
            "/query": Question(QueryRequest, self.by_tokens),
            "/query_by_hash": Question(QueryByHashRequest, self.by_hashes),
        }


def standard_routes(queries: StandardQueries) -> APIRouter:
    """Return the routes of `/query` and `/query_by_hash`."""
    router = APIRouter(tags=["standard"])

    @router.post("/query", summary="Where is this prompt cached?", response_model=Answer)
    async def query(request: QueryRequest) -> Response:
        """Return the tokens of the prompt that each instance holds, by tenant."""
        return await queries.by_tokens(request)

    @router.post("/query_by_hash", summary="Where are these blocks cached?", response_model=Answer)
    async def query_by_hash(request: QueryByHashRequest) -> Response:
        """Return the same as `/query`, from hashes that the client computed."""
        return await queries.by_hashes(request)

    return router


async def _chained(hashes: array[int], seed: int, reader: Reader) -> array[int]:
    if len(hashes) <= CHAINED_AT_ONCE:
        return chain_keys(hashes, seed=seed)
    try:
        return await reader.run(partial(chain_keys, hashes, seed=seed), n_bytes=len(hashes) * hashes.itemsize)
    except NotReadError as error:
        raise UnavailableError(str(error)) from error


def _wanted(fleet: Fleet, request: QueryRequest | QueryByHashRequest, names: ModelNames) -> list[Endpoint]:
    """Yield the endpoints of the requested tenant, instance and model."""
    instance = None if request.instance_id is None else str(request.instance_id)
    return [
        endpoint
        for endpoint in fleet
        if request.tenant_id in (None, endpoint.instance.tenant)
        and instance in (None, endpoint.instance.name)
        and names.served(endpoint.instance.model, request.model)
    ]


def _answer(wanted: list[Endpoint], matches: Mapping[str, PrefixMatch], tenant: str | None) -> Response:
    answer: dict[str, dict[str, _Match]] = {DEFAULT_TENANT: {}} if tenant in (None, DEFAULT_TENANT) else {}
    shared: dict[tuple[int, tuple[int, ...]], _Match] = {}
    """By identity of the match, since endpoints that hold nothing share one, and ranks."""
    for endpoint in wanted:
        match, ranks = matches.get(endpoint.name), tuple([rank.number for rank in endpoint.ranks])
        found = shared.get((id(match), ranks))
        if found is None:
            found = shared[id(match), ranks] = _instance(match, ranks)
        answer.setdefault(endpoint.instance.tenant, {})[endpoint.instance.name] = found
    return Response(_encode(answer), media_type=JSON)


def _instance(match: PrefixMatch | None, ranks: tuple[int, ...]) -> _Match:
    usable = match.rank_usable_tokens if match else dict[int, int]()
    size = match.block_size if match else 0
    tiers = [*(match.held.tier_blocks if match else ()), 0, 0, 0]
    return _Match(
        longest_matched=match.usable_tokens if match else 0,
        GPU=tiers[0] * size,
        CPU=tiers[1] * size,
        DISK=tiers[2] * size,
        DP={str(rank): usable.get(rank, 0) for rank in ranks},
    )
