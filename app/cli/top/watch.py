"""Watch a process: a screen that is redrawn on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from rich.console import Console
from rich.live import Live

from ...errors import AskError
from ..client import Client
from .rates import Sample, TopOut, take_sample
from .screen import screen


async def watch(client: Client, console: Console, *, interval_s: float, once: bool, as_json: bool) -> None:
    """Show the process until cancelled, or once.

    After the first response, failures are shown and requests repeated.

    Raises:
        AskError: the first request fails; as of `Client.event`.
    """
    before, now = None, await _sample(client)
    if once:
        await asyncio.sleep(interval_s)
        before, now = now, await _sample(client)
    if as_json:
        await _print_json(client, before, now, interval_s=interval_s, once=once)
    elif once or not console.is_terminal or console.is_dumb_terminal:
        await _print_texts(client, console, before, now, interval_s=interval_s, once=once)
    else:
        await _keep_screen(client, console, now, interval_s=interval_s)


async def _sample(client: Client) -> Sample:
    return await asyncio.to_thread(take_sample, client)


async def _print_json(
    client: Client, before: Sample | None, now: Sample, *, interval_s: float, once: bool
) -> None:
    while True:
        text = TopOut(frame=now.frame, rates=now.since(before)).model_dump_json(by_alias=True)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if once:
            return
        before, now = now, await _next(client, interval_s)


async def _print_texts(
    client: Client,
    console: Console,
    before: Sample | None,
    now: Sample,
    *,
    interval_s: float,
    once: bool,
) -> None:
    while True:
        console.print(screen(client.url, now.frame, now.since(before), n_lines=None), highlight=False)
        if once:
            return
        console.print()
        before, now = now, await _next(client, interval_s)


async def _next(client: Client, interval_s: float) -> Sample:
    """Return the next sample that succeeds; the first failure is reported on stderr."""
    reported = False
    while True:
        await asyncio.sleep(interval_s)
        try:
            return await _sample(client)
        except AskError as error:
            if not reported:
                sys.stderr.write(f"kvatlas: {error}; asking again every {interval_s:g} s\n")
                reported = True


async def _keep_screen(client: Client, console: Console, now: Sample, *, interval_s: float) -> None:
    before: Sample | None = None
    gone = ""
    async with _resizes() as resized:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(
                    screen(client.url, now.frame, now.since(before), n_lines=console.height, gone=gone),
                    refresh=True,
                )
                if await _resized_within(resized, interval_s):
                    continue
                try:
                    seen = await _sample(client)
                except AskError as error:
                    gone = f"{time.monotonic() - now.at:.0f} s, {error}"
                else:
                    before, now, gone = now, seen, ""


@asynccontextmanager
async def _resizes() -> AsyncGenerator[asyncio.Event]:
    """Yield an event that is set when the terminal is resized."""
    resized, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    try:
        yield resized
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _resized_within(resized: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(resized.wait(), seconds)
    was_resized = resized.is_set()
    resized.clear()
    return was_resized
