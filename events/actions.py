"""What a publisher's stream asks of the shell around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .model import Seq

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Apply(Generic[ItemT]):
    """Action: apply this batch. Every sequence number comes at most once per epoch, in order."""

    seq: Seq
    item: ItemT


@dataclass(frozen=True, slots=True)
class Reset:
    """Action: forget everything learned from this publisher, because it started a new life."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Action: request every batch from `start` on, then report replies, their end, and the passing of time."""

    start: Seq


Action = Apply[ItemT] | Reset | RequestReplay
