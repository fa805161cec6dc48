"""What one process of simulated servers may need."""

from __future__ import annotations

import pytest

from kvatlas.sim.errors import ListenError
from kvatlas.sim.live import check_open_files


@pytest.mark.parametrize("limit", [pytest.param(64, id="just_enough"), pytest.param(-1, id="no_limit")])
def test_servers_within_the_limit_of_open_files_are_accepted(limit: int) -> None:
    check_open_files(4, limit=limit)


def test_servers_beyond_the_limit_of_open_files_are_refused() -> None:
    message = "100 servers need 1600 open files, and this process may have 1024; use ulimit -Hn, or at most 64 servers"
    with pytest.raises(ListenError, match=message):
        check_open_files(100, limit=1024)
