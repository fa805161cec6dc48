"""The program that `TemplateProcess` runs: it renders chats with templates from requests.

It limits its own resources, then handles one request after the other until its input ends. A malicious template cannot do
harm: the process keeps nothing of other requests but their templates, has bounded memory, and is killed if it hangs.
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
"""Limit of the address space: 34 MiB for the program, and six times the longest text that a template may write."""

MAX_CPU_S = 2
"""CPU time of one chat, up to one second more. It ends a busy process whose parent has exited."""

CACHED_CHARS = 2**20
"""Total length of the templates in the cache of compiled templates."""

_LENGTH_BYTES = 4


class RenderResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of rendering one chat.

    Attributes:
        text: in UTF-8, with lone surrogates encoded like other characters; None if the rendering failed.
        fork: as in `TextPrompt`, in the same encoding.
        error: why there is no text.
    """

    text: bytes | None = None
    fork: bytes | None = None
    error: str = ""


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write the length of `data`, then `data`."""
    stream.write(len(data).to_bytes(_LENGTH_BYTES))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read one frame of `write_frame`; None if the stream ended before the frame did."""
    length = stream.read(_LENGTH_BYTES)
    data = stream.read(int.from_bytes(length))
    return data if len(length) == _LENGTH_BYTES and len(data) == int.from_bytes(length) else None


def render_request(request: bytes, compiled: Callable[[str], ChatTemplate]) -> RenderResult:
    """Render the chat in `request`, a `ForeignChat` as JSON, since msgpack does not support integers of any size."""
    try:
        foreign = msgspec.json.decode(request, type=ForeignChat)
        renderer = ChatRenderer(
            templates={},
            special_tokens=foreign.special_tokens,
            options=ChatOptions(content_parts=foreign.content_parts),
            compiled=compiled,
        )
        prompt = renderer.render(foreign.chat)
        fork = None if prompt.fork is None else prompt.fork.encode(errors="surrogatepass")
        return RenderResult(prompt.text.encode(errors="surrogatepass"), fork)
    except RenderError as error:
        return RenderResult(error=str(error))
    except (MemoryError, RecursionError) as error:
        return RenderResult(error=f"chat cannot be rendered within its limits: {type(error).__name__}")


def main() -> None:
    """Handle requests until the input ends."""
    _limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # exit quietly if the parent has exited
    with suppress(OSError):  # let the kernel kill this process first if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    compiled = cached(
        LRUCache[str, ChatTemplate](CACHED_CHARS, getsizeof=lambda template: len(template.source))
    )(ChatTemplate)
    write_frame(sys.stdout.buffer, b"")
    while (request := read_frame(sys.stdin.buffer)) is not None:
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + MAX_CPU_S)
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(render_request(request, compiled)))


def _limit(what: int, value: int) -> None:
    """Set the soft limit, never above the hard one."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
