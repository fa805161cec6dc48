"""One viewer of `/v1/live`, without a running process."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Scope

from kvatlas.api.rest.feed import LiveFeed, Pieces
from kvatlas.api.rest.live import LiveStream
from kvatlas.api.rest.metrics import RestMetrics

SCOPE: Scope = {"type": "http", "asgi": {"spec_version": "2.3"}}


def frame() -> Pieces:
    yield
    return b"{}"


class Viewer:
    """A connection that lasts until `gone`, and takes `n_taken` messages before it stalls."""

    def __init__(self, n_taken: int) -> None:
        self.registry = CollectorRegistry()
        metrics = RestMetrics(self.registry)
        self.feed = LiveFeed(frame, max_viewers=1, metrics=metrics, frame_s=0.0)
        self.gone = asyncio.Event()
        self.taken: list[Message] = []
        self.full = asyncio.Event()
        self._n_taken = n_taken
        self.feed.enter()
        self.stream = LiveStream(self.feed, metrics, stalled_s=0.02)

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.taken) >= self._n_taken:
            self.full.set()
            await asyncio.Event().wait()
        self.taken.append(message)

    def sample(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"kvatlas_{name}")


async def test_viewer_is_disconnected_when_it_takes_nothing() -> None:
    viewer = Viewer(n_taken=3)

    await viewer.stream(SCOPE, viewer.receive, viewer.send)

    assert [message.get("body") for message in viewer.taken[1:]] == [
        b"id: 1\ndata: {}\n\n",
        b"id: 2\ndata: {}\n\n",
    ]
    assert viewer.sample("live_viewers_dropped_total") == 1
    assert viewer.feed.n_viewers == 0


@pytest.mark.parametrize("n_taken", [pytest.param(0, id="at_once"), pytest.param(4, id="later")])
async def test_viewer_that_goes_gives_its_seat_back(n_taken: int) -> None:
    viewer = Viewer(n_taken=n_taken)
    viewer.stream = LiveStream(viewer.feed, RestMetrics(CollectorRegistry()), stalled_s=60)
    serving = asyncio.create_task(viewer.stream(SCOPE, viewer.receive, viewer.send))
    await viewer.full.wait()

    viewer.gone.set()
    await serving

    assert viewer.feed.n_viewers == 0
    assert viewer.sample("live_viewers_dropped_total") == 0


async def test_stream_ends_whole_when_the_process_ends() -> None:
    viewer = Viewer(n_taken=10**6)
    serving = asyncio.create_task(viewer.stream(SCOPE, viewer.receive, viewer.send))
    while len(viewer.taken) < 2:  # noqa: ASYNC110 - each turn of the loop makes progress
        await asyncio.sleep(0)

    viewer.feed.close()
    await serving

    assert viewer.taken[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
