"""Client of kvatlas's own gRPC services, generated from the `.proto` files beside it, and bodies of REST calls.

    with grpc.insecure_channel("localhost:9002") as channel:
        answer = ScorerStub(channel).Score(ScoreRequest(model="qwen3", prompt="Hello"))

The stubs take channels of `grpc.aio` as well; then their calls are awaited.
"""

from __future__ import annotations

from .indexer_pb2 import GetPodScoresRequest, GetPodScoresResponse, PodScore
from .indexer_pb2_grpc import IndexerServiceStub
from .query import MSGPACK, query_body, query_by_hash_body
from .scorer_pb2 import BlockKeys, ScoredEndpoint, ScoreRequest, ScoreResponse, TokenIds
from .scorer_pb2_grpc import ScorerStub

__all__ = [
    "MSGPACK",
    "BlockKeys",
    "GetPodScoresRequest",
    "GetPodScoresResponse",
    "IndexerServiceStub",
    "PodScore",
    "ScoreRequest",
    "ScoreResponse",
    "ScoredEndpoint",
    "ScorerStub",
    "TokenIds",
    "query_body",
    "query_by_hash_body",
]
