"""One ext-proc stream of a replay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import grpc
import grpc.aio

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.replay.messages import Sent

ANSWER_S = 20.0
"""Longest wait for an answer that should come; only a wrong picker takes it."""

_PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Stream:
    """A stream that is open until it is closed or the picker ends it.

    Attributes:
        sent: the request of the stream.
    """

    def __init__(self, channel: grpc.aio.Channel, sent: Sent) -> None:
        open_stream: grpc.aio.StreamStreamMultiCallable[pb.ProcessingRequest, pb.ProcessingResponse] = (
            channel.stream_stream(
                _PROCESS,
                request_serializer=pb.ProcessingRequest.SerializeToString,
                response_deserializer=pb.ProcessingResponse.FromString,
            )
        )
        self.sent = sent
        self._call = open_stream()
        self._received: asyncio.Queue[pb.ProcessingResponse | str] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    async def send(self, messages: Sequence[pb.ProcessingRequest]) -> None:
        """Send messages, as far as the picker takes them."""
        # The picker may end the stream meanwhile, which the reader sees.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                await self._call.write(message)

    async def answers_to(self, sent: Sent, kind: str) -> list[pb.ProcessingResponse | str]:
        """Return the answers to all of a request or response.

        Args:
            sent: what was sent.
            kind: "request" or "response".
        """
        received: list[pb.ProcessingResponse | str] = []
        while not _is_complete(received, sent, kind):
            try:
                received.append(await asyncio.wait_for(self._received.get(), ANSWER_S))
            except TimeoutError:
                return [*received, "no answer"]
            if isinstance(received[-1], str):
                break
        return received

    async def end(self) -> list[pb.ProcessingResponse | str]:
        """Close this side, and return what still comes."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()
        try:
            await asyncio.wait_for(asyncio.shield(self._reader), ANSWER_S)
        except TimeoutError:
            await self.cancel()
            return ["no end"]
        return [self._received.get_nowait() for _ in range(self._received.qsize())]

    async def cancel(self) -> None:
        self._call.cancel()
        await self._reader

    async def _read(self) -> None:
        end = "end"
        try:
            while (message := await self._call.read()) != grpc.aio.EOF:
                assert isinstance(message, pb.ProcessingResponse)
                self._received.put_nowait(message)
            if (code := await self._call.code()) is not grpc.StatusCode.OK:
                end = f"error {code.name} {await self._call.details()}"
        except grpc.aio.AioRpcError as error:
            end = f"error {error.code().name} {error.details()}"
        except asyncio.CancelledError:
            if not self._call.cancelled():
                raise
            end = "cancelled"
        self._received.put_nowait(end)


def _is_complete(received: Sequence[pb.ProcessingResponse | str], sent: Sent, kind: str) -> bool:
    """Return whether nothing more is due before more is sent."""
    messages = [each for each in received if not isinstance(each, str)]
    kinds = {each.WhichOneof("response") for each in messages}
    if "immediate_response" in kinds:
        return False  # the end of the stream follows
    if not sent.is_ended and kind == "request":
        return True  # nothing is due, and what comes is seen when the stream ends
    sends_headers = any(each.WhichOneof("request") == f"{kind}_headers" for each in sent.messages)
    if sends_headers and f"{kind}_headers" not in kinds:
        return False
    n_bodies = sum(1 for each in sent.messages if each.WhichOneof("request") == f"{kind}_body")
    if not n_bodies:
        return True
    if sent.has_trailers:
        return f"{kind}_trailers" in kinds
    bodies = [
        getattr(each, f"{kind}_body").response
        for each in messages
        if each.WhichOneof("response") == f"{kind}_body"
    ]
    streamed = [
        each.body_mutation.streamed_response
        for each in bodies
        if each.body_mutation.HasField("streamed_response")
    ]
    if not streamed:
        return len(bodies) == n_bodies  # BUFFERED: one answer to each message
    if sent.is_ended:
        return bool(streamed[-1].end_of_stream)
    return sum(len(each.body) for each in streamed) >= len(sent.body)
