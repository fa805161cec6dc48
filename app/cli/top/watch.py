"""Looks at a process until told to stop: on a terminal always the same screen, elsewhere one text after the other."""

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
from ..client import Asker, Credentials, asking
from .glance import Glance, TopOut, look
from .screen import screen


async def watch(
    url: str, credentials: Credentials, console: Console, *, interval_s: float, once: bool, as_json: bool
) -> None:
    """Show the process whose REST address is `url`, again and again; until cancelled, or once.

    Once it has answered, silence is shown and waited out.

    Raises:
        AskError: nobody answers at first, something that is not kvatlas does, or it refuses.
    """
    async with asking(url, credentials) as asker:
        before, now = None, await look(asker)
        if once:
            await asyncio.sleep(interval_s)
            before, now = now, await look(asker)
        if as_json:
            await _print_json(asker, before, now, interval_s=interval_s, once=once)
        elif once or not console.is_terminal or console.is_dumb_terminal:
            await _print_texts(url, asker, console, before, now, interval_s=interval_s, once=once)
        else:
            await _keep_screen(url, asker, console, now, interval_s=interval_s)


async def _print_json(
    asker: Asker, before: Glance | None, now: Glance, *, interval_s: float, once: bool
) -> None:
    while True:
        text = TopOut(frame=now.frame, rates=now.since(before)).model_dump_json(by_alias=True)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if once:
            return
        before, now = now, await _next(asker, interval_s)


async def _print_texts(
    url: str,
    asker: Asker,
    console: Console,
    before: Glance | None,
    now: Glance,
    *,
    interval_s: float,
    once: bool,
) -> None:
    while True:
        console.print(screen(url, now.frame, now.since(before), n_lines=None), highlight=False)
        if once:
            return
        console.print()
        before, now = now, await _next(asker, interval_s)


async def _next(asker: Asker, interval_s: float) -> Glance:
    """The next look that succeeds; where one does not, that is said once on stderr."""
    is_said = False
    while True:
        await asyncio.sleep(interval_s)
        try:
            return await look(asker)
        except AskError as error:
            if not is_said:
                sys.stderr.write(f"kvatlas: {error}; asking again every {interval_s:g} s\n")
                is_said = True


async def _keep_screen(url: str, asker: Asker, console: Console, now: Glance, *, interval_s: float) -> None:
    before: Glance | None = None
    gone = ""
    async with _resizes() as resized:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(
                    screen(url, now.frame, now.since(before), n_lines=console.height, gone=gone), refresh=True
                )
                if await _resized_within(resized, interval_s):
                    continue
                try:
                    seen = await look(asker)
                except AskError as error:
                    gone = f"{time.monotonic() - now.at:.0f} s, {error}"
                else:
                    before, now, gone = now, seen, ""


@asynccontextmanager
async def _resizes() -> AsyncGenerator[asyncio.Event]:
    """Set whenever the terminal has another size."""
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
