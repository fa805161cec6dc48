"""The bytes that several queues may hold together."""

from __future__ import annotations

from kvatlas.events.byte_budget import ByteBudget


def fill(budget: ByteBudget, held: int, size: int) -> int:
    """Let a queue that holds `held` bytes grow by messages of one size as far as it may; return what it holds."""
    while not budget.is_full(held):
        held += size
        budget.n_bytes += size
    return held


def test_queues_together_hold_the_bound_and_a_message_each() -> None:
    budget = ByteBudget.shared(8000, 4)
    held = [fill(budget, 0, 100) for _ in range(4)]
    assert held == [4000, 1000, 1000, 1000]


def test_queue_that_is_alone_holds_its_bound() -> None:
    assert fill(ByteBudget(1000), 0, 300) == 1200


def test_late_queue_has_its_share_when_others_are_full() -> None:
    budget = ByteBudget.shared(8000, 4)
    fill(budget, 0, 100)
    assert not budget.is_full(0)
    assert budget.is_full(1000)
