"""Streams of a publisher and a shell that records their actions."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvatlas.events.actions import Action, Apply, RequestReplay, Reset
from kvatlas.events.limits import StreamLimits
from kvatlas.events.stream import PublisherStream

LIMITS = StreamLimits(max_held=50, max_held_bytes=1000, reply_timeout_s=2.0, backoff_s=0.5, max_attempts=3)


@dataclass
class Shell:
    """A shell that collects the actions of a stream: items, replay requests and resets."""

    items: list[int] = field(default_factory=list[int])
    requests: list[int] = field(default_factory=list[int])
    resets: list[str] = field(default_factory=list[str])

    def take(self, actions: list[Action[int]]) -> None:
        for action in actions:
            match action:
                case Apply(item=item):
                    self.items.append(item)
                case RequestReplay(start=start):
                    self.requests.append(start)
                case Reset(reason=reason):
                    self.resets.append(reason)
                    self.items.clear()


def make_stream(*, can_replay: bool = True) -> tuple[PublisherStream[int], Shell]:
    return PublisherStream[int](can_replay=can_replay, limits=LIMITS), Shell()


def live(stream: PublisherStream[int], shell: Shell, *seqs: int, life: int = 0) -> None:
    for seq in seqs:
        shell.take(stream.live(seq, seq, ts=1000.0 * life + seq + 1))


def replay(
    stream: PublisherStream[int], shell: Shell, *seqs: int, life: int = 0, now: float = 0, end: bool = True
) -> None:
    stream.replay_sent(now=now)
    for seq in seqs:
        shell.take(stream.replayed(seq, seq, ts=1000.0 * life + seq + 1, now=now))
    if end:
        shell.take(stream.replay_end(now=now))


def starve(stream: PublisherStream[int], shell: Shell) -> None:
    """Leave every replay request unanswered until the stream stops requesting."""
    now = 0.0
    while stream.awaits_replay:
        stream.replay_sent(now=now)
        now += LIMITS.reply_timeout_s
        shell.take(stream.tick(now=now))
        now += 10
        shell.take(stream.tick(now=now))


def joined() -> tuple[PublisherStream[int], Shell]:
    """Return a stream that has verified an empty history and then received batches 0 to 2."""
    stream, shell = make_stream()
    shell.take(stream.connected())
    replay(stream, shell)
    live(stream, shell, 0, 1, 2)
    shell.requests.clear()
    return stream, shell
