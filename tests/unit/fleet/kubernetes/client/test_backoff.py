from __future__ import annotations

import pytest

from kvatlas.fleet.kubernetes.client.backoff import Backoff, Timing
from kvatlas.fleet.kubernetes.client.errors import Failure

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
