"""Templates out of requests, rendered where they can do no harm."""

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
from .template_runner import Answer, read_frame, write_frame

RENDER_S = 0.4
"""Beyond the CPU time of a rendering, 0.15 s for compiling the template, and where the process does not run all the time."""

WAIT_S = 0.5
"""Time of a start, 0.2 s, and some renderings before one's own. Gateways wait a second for all of an answer."""

START_S = 10.0
"""Longest start. The requests in whose time it falls do not wait for it to the end; those behind them need it."""


class TemplateProcess:
    """One process for the templates out of requests, started with the first of them, and again after it was ended.

    Args:
        render_s: longest time for one chat; past it the process is killed.
        wait_s: longest wait for a chat, in which others may come first.
    """

    def __init__(self, *, render_s: float = RENDER_S, wait_s: float = WAIT_S) -> None:
        self._render_s, self._wait_s = render_s, wait_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="templates")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is no process."""
        return self._process.pid if self._process else None

    async def rendered(self, chat: ForeignChat) -> TextPrompt:
        """What `render` returns, without holding up the event loop.

        Raises:
            RenderError: as `render`, or with others before it `chat` was not rendered in time.
        """
        rendering = asyncio.wrap_future(self._executor.submit(self.render, chat))
        try:
            return await asyncio.wait_for(rendering, self._wait_s)
        except TimeoutError as error:
            raise RenderError(f"the chat template was not rendered within {self._wait_s:g} s") from error

    def render(self, chat: ForeignChat) -> TextPrompt:
        """The text of `chat`, and with media its fork, as `ChatRenderer.render` makes them.

        Raises:
            RenderError: the template failed, or took more time or memory than it may have.
        Cost: two copies through pipes; 0.2 s more for the first chat, and for the first one after a process was killed.
        """
        question = msgspec.json.encode(chat)
        with self._lock:
            data = self._exchange(self._running(), question, limit_s=self._render_s)
        answer = msgspec.msgpack.decode(data, type=Answer)
        if answer.text is None:
            raise RenderError(answer.error)
        return TextPrompt(
            answer.text.decode(errors="surrogatepass"),
            chat.chat.add_special_tokens,
            truncation=chat.chat.truncation,
            fork=None if answer.fork is None else answer.fork.decode(errors="surrogatepass"),
        )

    def close(self) -> None:
        """End the process; chats that wait for it are not rendered."""
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
            process = subprocess.Popen(  # noqa: S603 - nothing of a request is in the command
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise RenderError(f"the process for chat templates cannot be started: {error}") from error
        self._process = process
        self._exchange(process, None, limit_s=START_S)
        return process

    def _exchange(self, process: subprocess.Popen[bytes], question: bytes | None, *, limit_s: float) -> bytes:
        """What `process` answers, to nothing when it has started. Without an answer in time it is ended."""
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        answer = _answer(process, question)
        timer.cancel()
        timer.join()
        if answer is None or late.is_set():
            self._stop()
            if late.is_set():
                raise RenderError(f"the process for the chat template took longer than {limit_s:g} s")
            raise RenderError(f"the process for the chat template ended with status {process.returncode}")
        return answer

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:  # closes the pipes, whatever is in them, and waits for the end
                process.kill()


def _answer(process: subprocess.Popen[bytes], question: bytes | None) -> bytes | None:
    """The next frame of `process`; None when it ended before."""
    stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    try:
        if question is not None:
            write_frame(stdin, question)
        return read_frame(stdout)
    except OSError:
        return None
