"""Durations with units."""

from __future__ import annotations

import pytest

from kvatlas.configs.units import Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("2s", 2.0), ("1.5s", 1.5), ("1m", 60.0), ("1h", 3600.0)],
)
def test_duration_round_trips(text: str, seconds: float) -> None:
    duration = Duration.parse(text)

    assert duration == pytest.approx(seconds)
    assert Duration.parse(str(duration)) == duration


@pytest.mark.parametrize("written", ["", "50", "50 ms", "-1s", "ms", "1d", "1s2s", 50, None, True])
def test_other_forms_are_rejected(written: object) -> None:
    with pytest.raises(ValueError, match="expected a duration like 50ms, 2s or 1m, got"):
        Duration.parse(written)


def test_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="above zero, got '0ms'"):
        Duration.parse("0ms")
