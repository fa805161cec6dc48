"""Renders chats with templates out of requests; the program that `TemplateProcess` runs.

It limits itself, then answers one question after the other until its input ends. What a template does to it harms nobody:
it keeps nothing of other requests but their templates, has a bounded memory, and is ended when it does not answer.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
from cachetools import LRUCache, cached

from ..errors import RenderError
from .chat import ChatOptions, ChatRenderer, ChatTemplate, ForeignChat

MAX_MEMORY_BYTES = 512 * 2**20
"""Address space: 34 MiB for the program, and six times the longest text that a template may write."""

MAX_CPU_S = 2
"""CPU time of one answer, up to a second more: what ends a busy process whose parent is gone."""

CACHED_CHARS = 2**20
"""Text of the templates that are kept compiled."""

_LENGTH_BYTES = 4


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What became of a chat.

    Attributes:
        text: in UTF-8, where lone surrogates are encoded like other characters; None when there is none.
        fork: as in `TextPrompt`, in the same form.
        error: why there is no text.
    """

    text: bytes | None = None
    fork: bytes | None = None
    error: str = ""


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Send `data` behind its length."""
    stream.write(len(data).to_bytes(_LENGTH_BYTES))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """What one `write_frame` sent; None when the stream ended before its end."""
    length = stream.read(_LENGTH_BYTES)
    data = stream.read(int.from_bytes(length))
    return data if len(length) == _LENGTH_BYTES and len(data) == int.from_bytes(length) else None


def answer(question: bytes, compiled: Callable[[str], ChatTemplate]) -> Answer:
    """Render the chat in `question`, JSON of a `ForeignChat`, since that alone has numbers of any size."""
    try:
        asked = msgspec.json.decode(question, type=ForeignChat)
        renderer = ChatRenderer(
            templates={},
            special_tokens=asked.special_tokens,
            options=ChatOptions(content_parts=asked.content_parts),
            compiled=compiled,
        )
        prompt = renderer.render(asked.chat)
        fork = None if prompt.fork is None else prompt.fork.encode(errors="surrogatepass")
        return Answer(prompt.text.encode(errors="surrogatepass"), fork)
    except RenderError as error:
        return Answer(error=str(error))
    except (MemoryError, RecursionError) as error:
        return Answer(error=f"chat cannot be rendered within its limits: {type(error).__name__}")


def main() -> None:
    """Answer until the input ends."""
    _limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody is left to tell when the parent is gone
    with suppress(OSError):  # where memory is short, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000")
    compiled = cached(
        LRUCache[str, ChatTemplate](CACHED_CHARS, getsizeof=lambda template: len(template.source))
    )(ChatTemplate)
    write_frame(sys.stdout.buffer, b"")
    while (question := read_frame(sys.stdin.buffer)) is not None:
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + MAX_CPU_S)
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(answer(question, compiled)))


def _limit(what: int, value: int) -> None:
    """Set the soft limit, never above the hard one."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
