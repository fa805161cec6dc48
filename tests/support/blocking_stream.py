"""A whole ext-proc stream by gRPC's blocking client.

gRPC's asyncio client makes up a status of its own when the server ends a stream that the client still writes to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc_client import METHOD


@dataclass(frozen=True)
class Answer:
    """Everything that the server said: its replies, the status of the stream and its details."""

    replies: list[pb.ProcessingResponse]
    code: grpc.StatusCode
    details: str


async def converse(channel: grpc.Channel, messages: Sequence[bytes]) -> Answer:
    """Say everything, whatever the server replies, and listen to its end."""
    return await asyncio.to_thread(_converse, channel, messages)


def _converse(channel: grpc.Channel, messages: Sequence[bytes]) -> Answer:
    process: grpc.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
        METHOD, response_deserializer=pb.ProcessingResponse.FromString
    )
    call = process(iter(messages))
    replies: list[pb.ProcessingResponse] = []
    with suppress(grpc.RpcError):
        for reply in call:
            replies.append(reply)  # noqa: PERF402 - those before an error count too
    return Answer(replies, call.code(), call.details() or "")
