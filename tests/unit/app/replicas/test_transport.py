"""Counters of what passes between replicas."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

from kvatlas.app.replicas.transport import Traffic


def test_sum_of_two_transports_has_every_counter_of_both() -> None:
    counts: dict[str, Any] = {each.name: 1 for each in fields(Traffic) if each.type == "int"}
    counts |= {each.name: Counter(reason=1) for each in fields(Traffic) if each.type == "Counter[str]"}
    one = Traffic(**counts, problem="")

    both = one + Traffic(**counts, problem="no reply")

    assert counts.keys() | {"problem"} == {each.name for each in fields(Traffic)}
    assert [getattr(both, name) for name in counts] == [value + value for value in counts.values()]
    assert both.problem == "no reply"
