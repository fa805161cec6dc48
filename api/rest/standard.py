"""The standard index contract: where a prompt's blocks are, in tokens, by tenant and instance.

Source: Mooncake RFC #1403, as also served by Dynamo's standalone indexer.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from typing import cast

from fastapi import APIRouter, Response

from ...fleet.fleet import Fleet
from ...indexer.atlas import keys_of
from ...indexer.local_hashes import chain_hashes
from ...routing.prefixes import prefix_of_keys
from ...tokenization.errors import NotReadError
from ...tokenization.reading import Reader
from .asked import Asked, replace_rows
from .errors import BadRequestError, UnavailableError
from .models import InstanceMatch, QueryByHashRequest, QueryRequest
from .question_bodies import JSON
from .questions import Question
from .registration import Registrations
from .sessions import with_sessions

CHAINED_AT_ONCE = 4096
"""Local hashes that the event loop chains itself: 1.5 ms in Python, 0.05 ms natively."""

Answer = dict[str, dict[str, InstanceMatch]]
"""The description of the answer, by tenant and instance."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Names that the `model` of a query may have.

    Attributes:
        configured: names of the configured model, empty when none are configured.
        registry: knows the models of registered instances.
    """

    configured: frozenset[str]
    registry: Registrations

    def is_adapter(self, asked: str | None) -> bool:
        """Return whether `asked` names an adapter of the configured model: it is no model's name."""
        known = not (asked and self.configured) or asked in self.configured
        return not known and asked not in self.registry.models  # looked up last: O(endpoints)

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
        self._asked = Asked(fleet, names)

    def by_tokens(self, request: QueryRequest) -> bytes:
        """Return the tokens of the prompt that each instance holds, by tenant, as JSON."""
        fleet, names = self._fleet, self._names
        adapter = request.model if names.is_adapter(request.model) else None
        tokens = _as_array(request.token_ids)
        lora, salt = request.lora_name or adapter, request.cache_salt
        asked = self._asked.of(request)
        prefix = fleet.atlas.prefix(tokens, lora=lora, salt=salt)
        columns = fleet.columns(prefix)
        if salt and (salted := [row for row, own in asked.salts.items() if own == salt]):
            replace_rows(columns, salted, fleet.columns(fleet.atlas.prefix(tokens, lora=lora)))
        answer = asked.answer(columns)
        return with_sessions(answer, fleet, prefix) if request.sessions else answer

    def by_hashes(self, request: QueryByHashRequest) -> bytes | None:
        """Return the same from block hashes, None if they are to be chained in the thread.

        Raises:
            BadRequestError: neither list is given, or both.
        """
        if (request.seq_hashes is None) == (request.block_hashes is None):
            raise BadRequestError("give either seq_hashes (chained) or block_hashes (local), not both")
        if request.seq_hashes is not None:
            return self._by_keys(keys_of(request.seq_hashes), request)
        local = keys_of(request.block_hashes or ())
        if len(local) > CHAINED_AT_ONCE:
            return None
        return self._by_keys(chain_hashes(local, seed=self._fleet.atlas.seed), request)

    async def by_any_hashes(self, request: QueryByHashRequest, _n_bytes: int = 0) -> bytes:
        """Return the same; the thread chains many local hashes.

        Raises:
            BadRequestError: as of `by_hashes`.
            UnavailableError: they were not chained in time.
        """
        if (answer := self.by_hashes(request)) is not None:
            return answer
        local = keys_of(request.block_hashes or ())
        chain = partial(chain_hashes, local, seed=self._fleet.atlas.seed)
        try:
            keys = await self._reader.run(chain, n_bytes=len(local) * local.itemsize)
        except NotReadError as error:
            raise UnavailableError(str(error)) from error
        return self._by_keys(keys, request)

    @property
    def questions(self) -> dict[str, Question]:
        """Both, for the door."""

        async def by_tokens(request: QueryRequest, _n_bytes: int) -> bytes:
            return self.by_tokens(request)

        return {
            "/query": Question(QueryRequest, by_tokens, self.by_tokens),
            "/query_by_hash": Question(QueryByHashRequest, self.by_any_hashes, self.by_hashes),
        }

    def _by_keys(self, keys: array[int], request: QueryByHashRequest) -> bytes:
        fleet = self._fleet
        columns = fleet.columns(prefix_of_keys(keys, request.block_size, fleet.atlas))
        return self._asked.of(request).answer(columns)


def standard_routes(queries: StandardQueries) -> APIRouter:
    """Return the routes of `/query` and `/query_by_hash`."""
    router = APIRouter(tags=["standard"])

    @router.post("/query", summary="Where is this prompt cached?", response_model=Answer)
    async def query(request: QueryRequest) -> Response:
        """Return the tokens of the prompt that each instance holds, by tenant."""
        return Response(queries.by_tokens(request), media_type=JSON)

    @router.post("/query_by_hash", summary="Where are these blocks cached?", response_model=Answer)
    async def query_by_hash(request: QueryByHashRequest) -> Response:
        """Return the same as `/query`, from hashes that the client computed."""
        return Response(await queries.by_any_hashes(request), media_type=JSON)

    return router


def _as_array(token_ids: list[int]) -> array[int]:
    given = cast("list[int] | array[int]", token_ids)  # see `models.TokenIds`
    return given if isinstance(given, array) else array("I", given)
