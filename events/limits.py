"""Bounds of one publisher's stream and of its replays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Bounds of one stream.

    Attributes:
        max_held: batches held while a hole before them is fetched; beyond it the oldest hole is given up.
        max_held_bytes: the same bound in bytes of payload.
        reply_timeout_s: silence after which an unanswered replay request counts as failed.
        backoff_s: wait before the second request for the same hole; doubles each time.
        max_attempts: requests without progress after which a hole is given up.
        max_pages: requests that follow another at once, as long as each makes progress; later ones wait `backoff_s`.
        max_doubtful: doubtful batches in a row after which the publisher's life is verified.
    """

    max_held: int = 20_000
    max_held_bytes: int = 64 * 1024 * 1024
    reply_timeout_s: float = 2.0
    backoff_s: float = 0.2
    max_attempts: int = 3
    max_pages: int = 16
    max_doubtful: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits:
    """Bounds of a publisher's snapshot.

    Attributes:
        timeout_s: time from the request to the whole reply.
        max_bytes: of all payloads. vLLM's recorder sends at most as much.
        max_payload_bytes: of one of them: 256 stores, each of the tokens that one engine step computes for a prompt.
        max_payloads: their number.
    """

    timeout_s: float = 10.0
    max_bytes: int = 256 * 1024 * 1024
    max_payload_bytes: int = 32 * 1024 * 1024
    max_payloads: int = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLimits:
    """Bounds of replies to replay requests.

    Attributes:
        max_batches: batches of one reply.
        timeout_s: time from the first request to the end of the reply.
        max_queued_bytes: batches of all replies that were received and not applied; further ones are requested again.
    """

    max_batches: int = 200_000
    timeout_s: float = 60.0
    max_queued_bytes: int = 64 * 1024 * 1024
