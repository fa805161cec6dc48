"""`indexer.v1.IndexerService`: scores of cached prefixes, as of the reference's index service."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import grpc.aio

from ...fleet.endpoint import Endpoint
from ...indexer.match import PrefixMatch
from ...routing.picker import Picker
from ...routing.prefixes import prefix_of_prompt
from ...tokenization.errors import RequestError
from ...tokenization.requests.request import direct_request
from ..client import indexer_pb2 as pb

SERVICE = "indexer.v1.IndexerService"

SLOWER_TIER_WEIGHT = 0.8
"""Weight of a block outside of the fastest tier, where it is 1. Source: the reference's default weights."""

MAX_PODS = 10_000
"""Most names of pods in one request, as many as endpoints that the picker is measured with."""


class PodScoresService:
    """Answers `GetPodScores`.

    Args:
        picker: tokenizes prompts and knows the fleet.
    """

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for a server."""
        scores = grpc.unary_unary_rpc_method_handler(
            self._scores, pb.GetPodScoresRequest.FromString, pb.GetPodScoresResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"GetPodScores": scores})

    async def _scores(
        self,
        request: pb.GetPodScoresRequest,
        context: grpc.aio.ServicerContext[pb.GetPodScoresRequest, pb.GetPodScoresResponse],
    ) -> pb.GetPodScoresResponse:
        picker, n_pods = self._picker, len(request.pod_identifiers)
        if n_pods > MAX_PODS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"pod_identifiers: found {n_pods}, at most {MAX_PODS} are taken; ask in parts, or for all pods without",
            )
        asked = frozenset(request.pod_identifiers)
        try:
            given = direct_request(model=request.model_name, text=request.prompt)
        except RequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        prefix = prefix_of_prompt(await picker.pipeline.tokenize(given), picker.fleet.atlas)
        matches = picker.fleet.atlas.match(prefix) if prefix is not None else {}
        scores: dict[str, float] = {}
        for endpoint in picker.fleet:
            match = matches.get(endpoint.name)
            if match is not None and (score := pod_score(match)):
                for pod in _names(endpoint, asked):
                    scores[pod] = max(score, scores.get(pod, 0.0))
        return pb.GetPodScoresResponse(
            scores=[pb.PodScore(pod=pod, score=score) for pod, score in scores.items()]
        )


def pod_score(match: PrefixMatch) -> float:
    """Return the blocks held without a gap, each weighted by its fastest tier."""
    fastest, *slower = match.held.union_blocks
    return fastest + SLOWER_TIER_WEIGHT * sum(slower)


def _names(endpoint: Endpoint, asked: frozenset[str]) -> Iterator[str]:
    """Yield the names under which the caller asked for the endpoint."""
    if not asked:
        yield endpoint.name
    for name in (endpoint.name, endpoint.address, endpoint.host):
        if name in asked:
            yield name
