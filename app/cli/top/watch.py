"""Watch a process: a screen that is redrawn on a terminal, lines elsewhere."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from ...errors import AskError
from ..client import Client
from .rates import Sample, TopOut, take_sample
from .screen import screen


def watch(client: Client, console: Console, *, interval_s: float, once: bool, as_json: bool) -> None:
    """Show the process until interrupted, or once. To be called from the main thread.

    After the first response, failures are shown and requests repeated.

    Raises:
        AskError: the first request fails; as of `Client.event`.
    """
    before, now = None, take_sample(client)
    if once:
        time.sleep(interval_s)
        before, now = now, take_sample(client)
    if as_json:
        _print_json(client, before, now, interval_s=interval_s, once=once)
    elif once or not console.is_terminal or console.is_dumb_terminal:
        _print_texts(client, console, before, now, interval_s=interval_s, once=once)
    else:
        _keep_screen(client, console, now, interval_s=interval_s)


def _print_json(client: Client, before: Sample | None, now: Sample, *, interval_s: float, once: bool) -> None:
    while True:
        text = _line(before, now)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if once:
            return
        before, now = now, _next(client, interval_s)


def _line(before: Sample | None, now: Sample) -> str:
    out = TopOut(frame=now.frame, rates=now.since(before), replicas=now.replicas)
    return out.model_dump_json(by_alias=True)


def _print_texts(
    client: Client, console: Console, before: Sample | None, now: Sample, *, interval_s: float, once: bool
) -> None:
    while True:
        shown = screen(client.url, now.frame, now.since(before), n_lines=None, replicas=now.replicas)
        console.print(shown, highlight=False)
        if once:
            return
        console.print()
        before, now = now, _next(client, interval_s)


def _next(client: Client, interval_s: float) -> Sample:
    """Return the next sample that succeeds; the first failure is reported on stderr."""
    reported = False
    while True:
        time.sleep(interval_s)
        try:
            return take_sample(client)
        except AskError as error:
            if not reported:
                sys.stderr.write(f"kvatlas: {error}; asking again every {interval_s:g} s\n")
                sys.stderr.flush()
                reported = True


def _keep_screen(client: Client, console: Console, now: Sample, *, interval_s: float) -> None:
    before: Sample | None = None
    gone = ""
    with _resizes_held(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(
                screen(
                    client.url,
                    now.frame,
                    now.since(before),
                    n_lines=console.height,
                    replicas=now.replicas,
                    gone=gone,
                ),
                refresh=True,
            )
            if signal.sigtimedwait([signal.SIGWINCH], interval_s) is not None:
                continue
            try:
                seen = take_sample(client)
            except AskError as error:
                gone = f"{time.monotonic() - now.at:.0f} s, {error}"
            else:
                before, now, gone = now, seen, ""


@contextmanager
def _resizes_held() -> Generator[None]:
    """Hold back the signal of a resized terminal, so that it can be waited for."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
