from __future__ import annotations

import pytest

from kvatlas.fleet.kubernetes.client.backoff import MAX_RETRY_AFTER_S, Backoff, Timing
from kvatlas.fleet.kubernetes.client.errors import Failure
from kvatlas.fleet.kubernetes.client.wire import read_status

BROKEN = Failure("cut", "broke off")


def test_pause_is_the_servers_alone_when_many_of_ours_went_before() -> None:
    backoff = Backoff(Timing(first_delay_s=1.0), lambda: 0.5)
    for _ in range(5):
        backoff.failed(BROKEN)
    assert backoff.failed(Failure("http_status", "storage is (re)initializing", 429, 1.0)) == 1.0


@pytest.mark.parametrize("reason", ["unreachable", "timeout"])
def test_pauses_stay_short_when_the_server_does_not_respond(reason: str) -> None:
    backoff = Backoff(Timing(), lambda: 0.999)
    waits = [backoff.failed(Failure(reason, "away")) for _ in range(9)]
    assert max(waits) < 3.0
    assert backoff.failed(BROKEN) > 40


@pytest.mark.parametrize(
    ("asked", "pause"),
    [
        pytest.param("7", 7.0, id="few_seconds"),
        pytest.param("9" * 400, MAX_RETRY_AFTER_S, id="beyond_a_float"),
        pytest.param("-7", 1.0, id="negative"),
        pytest.param("0", 1.0, id="none"),
    ],
)
def test_pause_is_bounded_whatever_a_status_asks_for(asked: str, pause: float) -> None:
    status = read_status(b'{"code":429,"details":{"retryAfterSeconds":%b}}' % asked.encode())
    assert status is not None
    assert Backoff(Timing(first_delay_s=1.0), lambda: 0.5).failed(status.failure) == pause
