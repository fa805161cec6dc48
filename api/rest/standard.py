"""The standard index contract: where a prompt's blocks are, in tokens, by tenant and instance.

Source: Mooncake RFC #1403, as also served by Dynamo's standalone indexer.
"""

from __future__ import annotations

from array import array

from fastapi import APIRouter

from ...indexer.atlas import Atlas, keys_of
from ...indexer.keys import chain_keys
from ...indexer.match import PrefixMatch
from ...indexer.prefix import Prefix
from ..fleet import Fleet
from .errors import BadRequestError
from .models import InstanceMatch, QueryByHashRequest, QueryRequest

DEFAULT_TENANT = "default"
"""Tenant of configured and discovered endpoints."""

Answer = dict[str, dict[str, InstanceMatch]]


def standard_routes(fleet: Fleet, *, model_names: frozenset[str]) -> APIRouter:
    """`/query` and `/query_by_hash`."""
    router = APIRouter(tags=["standard"])

    @router.post("/query", summary="Where is this prompt cached?")
    async def query(request: QueryRequest) -> Answer:
        """Tokens of the prompt that each instance holds, by tenant."""
        model = request.model or request.model_name
        lora = request.lora_name or (model if model and model_names and model not in model_names else None)
        tokens = array("I", request.token_ids)
        prefix = Prefix(tokens, lora=lora, salt=request.cache_salt, seed=fleet.atlas.seed)
        return _answer(fleet, prefix, request.tenant_id, request.instance_id)

    @router.post("/query_by_hash", summary="Where are these blocks cached?")
    async def query_by_hash(request: QueryByHashRequest) -> Answer:
        """As `/query`, from hashes that the client computed."""
        if (request.seq_hashes is None) == (request.block_hashes is None):
            raise BadRequestError("give either seq_hashes (chained) or block_hashes (local), not both")
        if request.seq_hashes is not None:
            keys = keys_of(request.seq_hashes)
        else:
            keys = chain_keys(keys_of(request.block_hashes or ()), seed=fleet.atlas.seed)
        prefix = prefix_of_keys(keys, request.block_size, fleet.atlas)
        return _answer(fleet, prefix, request.tenant_id, request.instance_id)

    return router


def prefix_of_keys(keys: array[int], block_size: int | None, atlas: Atlas) -> Prefix:
    """A prefix of known keys, at the block size named or at every one in use."""
    sizes = [block_size] if block_size is not None else atlas.block_sizes
    return Prefix.from_keys(dict.fromkeys(sizes, keys))


def _answer(fleet: Fleet, prefix: Prefix, tenant: str | None, instance: str | None) -> Answer:
    if tenant not in (None, DEFAULT_TENANT):
        return {}
    matches = fleet.atlas.match(prefix)
    wanted = [endpoint for endpoint in fleet if instance in (None, endpoint.name)]
    return {DEFAULT_TENANT: {e.name: _instance(matches.get(e.name), len(e.publishers)) for e in wanted}}


def _instance(match: PrefixMatch | None, n_ranks: int) -> InstanceMatch:
    usable = match.rank_usable_blocks if match else {}
    size = match.block_size if match else 0
    tiers = [*(match.tier_blocks.values() if match else ()), 0, 0, 0]
    return InstanceMatch(
        longest_matched=match.usable_tokens if match else 0,
        GPU=tiers[0] * size,
        CPU=tiers[1] * size,
        DISK=tiers[2] * size,
        DP={str(rank): usable.get(rank, 0) * size for rank in range(n_ranks)},
    )
