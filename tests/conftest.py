"""Hypothesis profiles, shared fixtures, and the guard that every test cleans up after itself."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.leaks import no_blocked_signals, no_new_processes, no_new_tasks, no_new_threads

# Both profiles are derandomized, so that a failed run fails again; without deadlines, since a loaded machine is slow.
_SLOW_IS_FINE = [HealthCheck.too_slow]
settings.register_profile(
    "default", max_examples=25, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile(
    "ci", max_examples=1000, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure() -> None:
    # A shell starts its background jobs with SIGINT ignored, nohup its command with SIGHUP, and a service manager may block
    # them. Processes of tests would inherit it: they could not be interrupted.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-screenshots",
        action="store_true",
        help="write docs/images/dashboard-*.png from what tests look at",
    )


@pytest.fixture(scope="session")
def pictures(pytestconfig: pytest.Config) -> Path | None:
    """Return the folder for pictures of pages, None if the option is not given."""
    folder = Path(__file__).parents[1] / "docs" / "images"
    return folder if pytestconfig.getoption("--write-screenshots") else None


@pytest.fixture(scope="session")
def golden() -> Path:
    """Return the folder with the recordings of vLLM 0.32.0; its README describes them."""
    return Path(__file__).parent / "golden" / "vllm-0.32.0"


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("_leaves_no_tasks_behind")
    with no_new_processes(), no_new_threads(), no_blocked_signals():
        yield


@pytest.fixture
async def _leaves_no_tasks_behind() -> AsyncIterator[None]:
    async with no_new_tasks():
        yield
