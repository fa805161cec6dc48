"""`kvatlas.v1.Scorer`: the decision a prompt would get, with its reasons."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial

import grpc
import grpc.aio
import msgspec

from ...indexer.atlas import keys_of
from ...indexer.match import PrefixMatch
from ...routing.dry_run import PromptQuery, dry_run
from ...routing.picker import Picker
from ...scorers.core.decision import Decision, ScoredCandidate
from ...tokenization.errors import BodyFormatError, NotReadError, RequestError
from ...tokenization.requests.cost import LIGHT_BYTES, decoding_cost, is_light
from ..client import scorer_pb2 as pb
from .score_body import ScoreBody, read_score

SERVICE = "kvatlas.v1.Scorer"

PIECE = 65536
"""Numbers that are converted in one step, 2 ms."""


class ScorerService:
    """Gives the answers of `/v1/score`.

    Args:
        picker: scores prompts and knows the fleet.
    """

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for a server."""
        score = grpc.unary_unary_rpc_method_handler(
            self._score, read_score, pb.ScoreResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Score": score})

    async def _score(
        self, body: ScoreBody, context: grpc.aio.ServicerContext[ScoreBody, pb.ScoreResponse]
    ) -> pb.ScoreResponse:
        try:
            decision = await dry_run(self._picker, await self._query(body))
        except RequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NotReadError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        if decision is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no endpoint is configured")
        return _response(decision)

    async def _query(self, body: ScoreBody) -> PromptQuery:
        reader = self._picker.reader
        if body.n_bytes <= LIGHT_BYTES:
            return _query(body, reader.max_cost)
        return await reader.run(partial(_query, body, reader.max_cost), n_bytes=body.n_bytes)


def _query(body: ScoreBody, max_cost: int) -> PromptQuery:
    request, numbers = body.request, body.numbers
    if max(len(numbers or ()), len(request.token_ids.ids), len(request.keys.keys)) > max_cost:
        raise BodyFormatError(f"more than {max_cost} values, tokenization.maxReadingCost")
    given = request.WhichOneof("input")
    token_ids = keys = None
    if given == "token_ids":
        token_ids = numbers or _in_pieces(request.token_ids.ids, lambda ids: array("I", ids))
    elif given == "keys":
        keys = numbers or _in_pieces(request.keys.keys, keys_of)
    return PromptQuery(
        model=request.model,
        text=request.prompt if given == "prompt" else None,
        messages=_json(request.messages, max_cost) if given == "messages" else None,
        token_ids=token_ids,
        keys=keys,
        block_size=request.keys.block_size or None,
        cache_salt=request.cache_salt or None,
        n_bytes=body.n_bytes,
    )


def _in_pieces(values: Sequence[int], convert: Callable[[Sequence[int]], array[int]]) -> array[int]:
    """Convert numbers so that other threads run in between."""
    converted = convert(values[:PIECE])
    for start in range(PIECE, len(values), PIECE):
        converted += convert(values[start : start + PIECE])
    return converted


def _json(messages: str, max_cost: int) -> object:
    text = messages.encode()
    if not is_light(text) and decoding_cost(text) > max_cost:
        raise BodyFormatError(f"reading messages costs more than {max_cost}, tokenization.maxReadingCost")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyFormatError(f"messages is no JSON: {error}") from error


def _response(decision: Decision) -> pb.ScoreResponse:
    return pb.ScoreResponse(
        model=decision.model,
        tokens=decision.n_tokens,
        blocks=decision.prefixes.max_blocks if decision.prefixes is not None else 0,
        picked=decision.picked,
        tie=decision.tie,
        no_prefix_reason=decision.no_prefix_reason or "",
        cut_reason=decision.cut_reason or "",
        endpoints=[_endpoint(scored) for scored in decision.scored],
        faults=[
            pb.PluginFault(name=fault.name, reason=fault.reason, detail=fault.detail)
            for fault in decision.faults
        ],
    )


def _endpoint(scored: ScoredCandidate) -> pb.ScoredEndpoint:
    candidate, dropped = scored.candidate, scored.dropped
    return pb.ScoredEndpoint(
        name=candidate.name,
        address=candidate.address,
        total=scored.total,
        filtered_by=dropped.by if dropped else "",
        filter_reason=dropped.reason if dropped else "",
        trust=candidate.trust.value,
        prefix=_prefix(candidate.prefix) if candidate.prefix else None,
        scores=[
            pb.ScorerPart(
                name=term.name,
                type=term.type,
                raw=term.rating.raw,
                score=term.rating.score,
                weight=term.weight,
                product=term.product,
                age_seconds=term.rating.age_s,
            )
            for term in scored.terms
        ],
    )


def _prefix(match: PrefixMatch) -> pb.Prefix:
    return pb.Prefix(
        usable_tokens=match.usable_tokens,
        tier_tokens={tier: n_blocks * match.block_size for tier, n_blocks in match.tier_blocks.items()},
        runs=[pb.Run(tier=run.tier, blocks=run.n_blocks) for run in match.runs],
    )
