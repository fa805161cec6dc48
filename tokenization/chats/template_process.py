"""A separate process that renders chat templates from requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, cast

import msgspec

from ..errors import RenderError
from ..model import TextPrompt
from . import template_runner
from .chat import ForeignChat
from .template_runner import RenderResult, read_frame, write_frame

RENDER_S = 0.4
"""Time limit of one chat: `time_bound.MAX_RENDER_S`, and 0.15 s to compile the template and to wait for the CPU."""

WAIT_S = 0.5
"""Longest wait: 0.2 s to start the process, and a few earlier renderings. Gateways wait one second for a response."""

START_S = 10.0
"""Longest start of the process. Earlier requests give up sooner, but later ones need the process."""


class TemplateProcess:
    """One process for the templates from requests; started for the first chat, and again after it was killed.

    Args:
        render_s: time limit of one chat; after it the process is killed.
        wait_s: longest wait for a chat, including the chats queued before it.
    """

    def __init__(self, *, render_s: float = RENDER_S, wait_s: float = WAIT_S) -> None:
        self._render_s, self._wait_s = render_s, wait_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="templates")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return self._process.pid if self._process else None

    async def rendered(self, chat: ForeignChat) -> TextPrompt:
        """Render as `render` does, without blocking the event loop.

        Raises:
            RenderError: as `render`, or `chat` was not rendered within `wait_s`.
        """
        rendering = asyncio.wrap_future(self._executor.submit(self.render, chat))
        try:
            return await asyncio.wait_for(rendering, self._wait_s)
        except TimeoutError as error:
            raise RenderError(f"the chat template was not rendered within {self._wait_s:g} s") from error

    def render(self, chat: ForeignChat) -> TextPrompt:
        """Render the text of `chat`, and its fork if it has media, as `ChatRenderer.render` does.

        Raises:
            RenderError: the template failed or exceeded its time or memory limit, or the chat is nested too deeply.
        Cost: two copies through pipes; 0.2 s more if the process must be started.
        """
        try:
            request = msgspec.json.encode(chat)
        except (UnicodeEncodeError, RecursionError) as error:
            raise RenderError(f"chat cannot be passed on to be rendered: {type(error).__name__}") from error
        with self._lock:
            data = self._exchange(self._running(), request, limit_s=self._render_s)
        result = msgspec.msgpack.decode(data, type=RenderResult)
        if result.text is None:
            raise RenderError(result.error)
        return TextPrompt(
            result.text.decode(errors="surrogatepass"),
            chat.chat.add_special_tokens,
            truncation=chat.chat.truncation,
            fork=None if result.fork is None else result.fork.decode(errors="surrogatepass"),
        )

    def close(self) -> None:
        """Kill the process; queued chats are not rendered."""
        if self._process is not None:
            self._process.kill()
        self._executor.shutdown(cancel_futures=True)
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        command = [sys.executable, "-P", "-m", template_runner.__name__]
        try:
            process = subprocess.Popen(  # noqa: S603 - the command contains no request data
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise RenderError(f"the process for chat templates cannot be started: {error}") from error
        self._process = process
        self._exchange(process, None, limit_s=START_S)
        return process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes | None, *, limit_s: float) -> bytes:
        """Send `request`, unless it is None, and return the next frame of `process`; kill it after `limit_s`."""
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        response = _next_frame(process, request)
        timer.cancel()
        timer.join()
        if response is None or late.is_set():
            self._stop()
            if late.is_set():
                raise RenderError(f"the process for the chat template took longer than {limit_s:g} s")
            raise RenderError(f"the process for the chat template ended with status {process.returncode}")
        return response

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:  # closes the pipes without reading them, and waits for the exit
                process.kill()


def _next_frame(process: subprocess.Popen[bytes], request: bytes | None) -> bytes | None:
    """Send `request`, unless it is None, and read the next frame of `process`; None if it exited before."""
    stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    try:
        if request is not None:
            write_frame(stdin, request)
        return read_frame(stdout)
    except OSError:
        return None
