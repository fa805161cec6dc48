"""What `kvatlas recorder` asks of a running process, and how it tells a person."""

from __future__ import annotations

import asyncio

from rich.console import Console

from ....api.rest.recorder import RecorderOut
from ...errors import AskError
from ..client import Credentials, asking

_WORDS = {
    "recorded": "recorded",
    "no_prefix": "without token ids",
    "cut": "of which only the first token ids are known",
    "several_prompts": "with several prompts",
    "too_long": "too long for a file",
    "overload": "lost, since too many waited to be written",
    "not_written": "lost, since the file could not be written",
}


def fetch_recorder(url: str, credentials: Credentials) -> RecorderOut:
    """How recording goes in the process whose REST address is `url`.

    Raises:
        AskError: nobody answers there, something that is not kvatlas does, or it refuses.
    """
    return asyncio.run(_fetch(url, credentials))


def print_recorder(console: Console, found: RecorderOut) -> None:
    """Where the traces are, and what became of requests."""
    if found.folder is None:
        console.print("nothing is recorded; recorder.folder names where to", highlight=False)
        return
    console.print(
        f"{found.folder}: {found.bytes / 2**20:.1f} MiB, {found.file or 'no file yet'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    for fate, count in found.requests.items():
        if count:
            console.print(f"{count:>9} requests {_WORDS.get(fate, fate)}", highlight=False)
    if found.unknown_outputs:
        console.print(f"{found.unknown_outputs:>9} of the recorded without output length", highlight=False)
    if found.waiting:
        console.print(f"{found.waiting:>9} requests wait to be written", highlight=False)
    if found.failure is not None:
        console.print(f"the last write failed: {found.failure}", style="red", highlight=False, markup=False)


async def _fetch(url: str, credentials: Credentials) -> RecorderOut:
    async with asking(url, credentials) as asker:
        found = await asker.get("/v1/recorder", RecorderOut)
    if found is None:
        raise AskError(f"{url}: knows no /v1/recorder; see --url")
    return found
