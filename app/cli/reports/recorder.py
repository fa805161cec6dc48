"""The report of `kvatlas recorder`."""

from __future__ import annotations

from rich.console import Console

from ....api.rest.recorder_models import RecorderOut
from ..client import Client

_WORDS = {
    "recorded": "recorded",
    "no_prefix": "without token ids",
    "cut": "of which only the first token ids are known",
    "several_prompts": "with several prompts",
    "too_long": "too long for a file",
    "overload": "lost, since too many waited to be written",
    "not_written": "lost, since the file could not be written",
}


def fetch_recorder(client: Client) -> RecorderOut:
    """Return the state of recording.

    Raises:
        AskError: as of `Client.require`.
    """
    return client.require("/v1/recorder", RecorderOut)


def print_recorder(console: Console, found: RecorderOut) -> None:
    """Print the place of the traces, and counts of requests by outcome."""
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
