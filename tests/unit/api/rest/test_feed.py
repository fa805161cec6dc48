"""Frames for viewers, without a running process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.api.rest.errors import UnavailableError
from kvatlas.api.rest.feed import Frame, LiveFeed, Pieces
from kvatlas.api.rest.metrics import RestMetrics


@dataclass
class Maker:
    """A maker of frames that contain their number."""

    cost_s: float = 0.0
    n_made: int = 0
    n_running: int = 0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def frame(self) -> Pieces:
        self.n_running += 1
        assert self.n_running == 1, "two frames at the same time"
        yield
        ends = time.thread_time() + self.cost_s
        while time.thread_time() < ends:
            pass
        self.n_made += 1
        self.n_running -= 1
        return b"%d" % self.n_made

    def feed(self, *, frame_s: float = 0.0, max_viewers: int = 2) -> LiveFeed:
        return LiveFeed(
            self.frame, max_viewers=max_viewers, metrics=RestMetrics(self.registry), frame_s=frame_s
        )

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kvatlas_{name}", labels)


async def test_viewers_get_the_same_frame_and_none_is_made_without_them() -> None:
    maker = Maker()
    feed = maker.feed(frame_s=3600)
    assert maker.n_made == 0

    one, two = await asyncio.gather(feed.after(0), feed.after(0))

    assert one == two == Frame(1, b"1")


async def test_viewer_gets_the_newest_frame_and_missed_ones_are_counted() -> None:
    maker = Maker()
    feed = maker.feed()
    for seen in range(5):
        assert await feed.after(seen) == Frame(seen + 1, b"%d" % (seen + 1))

    newest = await feed.after(2)

    assert newest is not None
    assert newest.number >= 5, "one more if the pause is over already"
    assert maker.sample("live_frames_skipped_total") == newest.number - 3


async def test_new_viewer_does_not_wait_with_those_that_have_the_newest_frame() -> None:
    maker = Maker()
    feed = maker.feed(frame_s=3600)
    await feed.after(0)
    waiting = asyncio.create_task(feed.after(1))
    await asyncio.sleep(0)

    assert await feed.after(0) == Frame(1, b"1")
    assert not waiting.done()
    feed.close()
    await waiting


async def test_frame_that_took_long_is_followed_by_a_long_pause() -> None:
    maker = Maker(cost_s=0.05)  # with 1 % of a core, one frame per five seconds
    feed = maker.feed()
    await feed.after(0)

    waiting = asyncio.create_task(feed.after(1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    feed.close()

    assert await waiting is None
    assert maker.n_made == 1


async def test_viewer_that_leaves_while_it_waits_leaves_the_turn_to_the_next() -> None:
    maker = Maker()
    feed = maker.feed(frame_s=3600)
    await feed.after(0)
    leaving, staying = asyncio.create_task(feed.after(1)), asyncio.create_task(feed.after(1))
    await asyncio.sleep(0)

    leaving.cancel()
    await asyncio.wait({leaving})
    feed.close()

    assert leaving.cancelled()
    assert await staying is None


async def test_seats_are_bounded_and_given_back() -> None:
    maker = Maker()
    feed = maker.feed(max_viewers=2)
    feed.enter()
    feed.enter()
    assert maker.sample("live_viewers") == 2

    with pytest.raises(UnavailableError, match=r"2 viewers are there, rest\.maxLiveViewers"):
        feed.enter()
    feed.leave()
    feed.enter()

    assert feed.n_viewers == 2
    assert maker.sample("rest_refusals_total", reason="too_many_viewers") == 1


async def test_no_viewer_is_admitted_when_the_process_ends() -> None:
    feed = Maker().feed()
    feed.close()

    with pytest.raises(UnavailableError, match="the process ends"):
        feed.enter()
    assert await feed.after(0) is None
