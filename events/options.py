"""Settings shared by all subscriptions of a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .inbox import OpenInbox
from .inboxes import open_inbox
from .limits import ReplayLimits, SnapshotLimits, StreamLimits
from .model import Batch
from .wire import decode_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """Settings shared by all subscriptions.

    Attributes:
        topic_prefix: ZMQ subscription prefix.
        receive_hwm: messages that a socket queues before the sender drops; a loss shows as a gap.
        max_sockets: sockets open at one time.
        max_concurrent_replays: replay requests open at one time, over the fleet.
        max_concurrent_snapshots: snapshots fetched or applied at one time, over the fleet; each takes memory for its reply.
        recheck_s: time after a connection at which to request batches lost before the subscription took effect.
        idle_check_s: silence after which to request missed batches.
        tick_s: resolution of time-outs.
        replay_limits: bounds of a reply to a replay request.
        snapshot_limits: bounds of a snapshot.
        decode: decodes payloads, as `decode_batch` does.
        open_inbox: opens the inbox of a publisher's socket.
    """

    topic_prefix: str = ""
    receive_hwm: int = 100_000
    max_sockets: int = 65_000
    max_concurrent_replays: int = 8
    max_concurrent_snapshots: int = 4
    recheck_s: float = 1.0
    idle_check_s: float = 10.0
    tick_s: float = 0.2
    limits: StreamLimits = field(default_factory=StreamLimits)
    replay_limits: ReplayLimits = field(default_factory=ReplayLimits)
    snapshot_limits: SnapshotLimits = field(default_factory=SnapshotLimits)
    decode: Callable[[bytes], Batch] = decode_batch
    open_inbox: OpenInbox = open_inbox
