"""Responses that pass through the native part of a session, beside the same ones message by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.messages import read_message
from kvatlas.routing.outcome import Completion
from support.ext_proc import (
    DUPLEX,
    MachineDriver,
    make_route,
    messages,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from support.http2 import ENDED, GONE, MESSAGE, PASSED, Client, framed, session

if TYPE_CHECKING:
    from kvatlas.api.extproc.stream import Step

ROUTE = make_route("10.0.0.1:8000")
STREAMED = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.BUFFERED, response_body_mode=pb.ProcessingMode.STREAMED
)
MODES = {"duplex": DUPLEX, "streamed": STREAMED}
"""What gateways ask for if they show bodies as they come."""


class Passed:
    """A stream whose response passes through a session as soon as it may.

    Attributes:
        driver: of the machine, which has the reports.
        replies: what the gateway got since.
        n_messages: messages of the response that came to Python.
    """

    def __init__(self, config: pb.ProtocolConfiguration, content_type: str) -> None:
        self.driver = begun(config, content_type)
        self.client = Client(session(max_message_bytes=8 << 20))
        self.stream = self.client.open()
        self.client.pump()
        self.n_messages = 0
        self._is_due = True
        self._pass()

    @property
    def replies(self) -> list[bytes]:
        self.client.pump()
        answer = self.client.results.get(self.stream)
        return answer.messages if answer is not None else []

    def send(self, *sent: pb.ProcessingRequest, at_once: bool = True, ends: bool = False) -> None:
        data = [framed(each.SerializeToString()) for each in sent]
        for piece in [b"".join(data)] if at_once else data:
            self._take(self.client.send(self.stream, piece))
        if ends:
            self._take(self.client.send(self.stream, b"", ends=True))

    def leave(self) -> None:
        if report := self.client.session.leave(self.stream):
            self._act(self.driver.machine.passed(report, now=self.driver.now))

    def _pass(self) -> None:
        """Have the rest pass if it may, and if the messages that came before were taken."""
        passage = self.driver.machine.passage() if self._is_due else None
        if passage is not None:
            self._is_due = False
            self.client.session.pass_messages(self.stream, passage)

    def _take(self, events: Sequence[object]) -> None:
        for event in events:
            kind, stream, *rest = cast("tuple[int, int, bytes]", event)
            assert stream == self.stream
            if kind == PASSED:
                self._act(self.driver.machine.passed(rest[0], now=self.driver.now))
            elif kind == MESSAGE:
                self.n_messages += 1
                self._act(self.driver.machine.receive(read_message(rest[0]), now=self.driver.now))
            else:
                assert kind in (ENDED, GONE)
        self._pass()

    def _act(self, step: Step) -> None:
        self._is_due = self._is_due or step.passes
        if step.begun is not None:
            self.driver.begun.append(step.begun)
        if step.completion is not None:
            self.driver.completions.append(step.completion)
        for reply in messages(step.replies):
            self.client.session.send(self.stream, reply)


def begun(config: pb.ProtocolConfiguration, content_type: str) -> MachineDriver:
    """Return a stream whose response's headers have come."""
    driver = MachineDriver(ROUTE)
    driver.send(request_headers(config=config), request_body(b"{}", end=True))
    driver.send(response_headers(("content-type", content_type)))
    driver.replies.clear()
    return driver


def both(
    config: pb.ProtocolConfiguration,
    content_type: str,
    sent: Sequence[pb.ProcessingRequest],
    *,
    at_once: bool,
) -> tuple[Completion, Passed]:
    """Send a response in both ways and return how it passed; all of it must be equal. Its first piece comes alone."""
    driver, passed = begun(config, content_type), Passed(config, content_type)
    driver.send(*sent)
    passed.send(*sent[:1])
    passed.send(*sent[1:], at_once=at_once)
    assert passed.replies == [each.SerializeToString() for each in driver.replies]
    passed.leave()
    assert passed.driver.begun == driver.begun
    completion = driver.close()
    assert passed.driver.close() == completion
    assert passed.driver.intake.n_bytes == 0
    return completion, passed


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the pieces of a body."""
    ends = sorted({place % (len(body) + 1) for place in places})
    return [body[start:end] for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]


def chunks(pieces: Sequence[bytes], *, ends: bool = True) -> list[pb.ProcessingRequest]:
    """Return the messages of a body."""
    return [
        response_body(piece, end=ends and number == len(pieces) - 1) for number, piece in enumerate(pieces)
    ]
