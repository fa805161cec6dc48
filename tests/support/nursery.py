"""Program that imports the server and forks a process of the `kvatlas` command for each message of a socket.

A message is JSON: arguments, environment and folder. Two descriptors come with it: one to write the process id and the
exit status to, and standard error. Once the other side of the socket is closed, the program ends with all that it forked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys

NUMBER = struct.Struct("i")

_IMPORTED = ("kvatlas.app.cli.main", "kvatlas.app.cli.serving")
_MAX_REQUEST = 1 << 20


class _Nursery:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, int]] = {}
        """Descriptor of a process -> its id and where its status goes."""

    def serve(self) -> bool:
        """Fork processes; return whether this is one of them, with its arguments in `sys.argv`."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._running:
                    self._ended(key.fd)
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._requests, _MAX_REQUEST, 2)
                if not message:
                    for pid, _ in self._running.values():
                        os.kill(pid, signal.SIGKILL)
                    return False
                if self._forked(message, *descriptors):
                    return True

    def _forked(self, message: bytes, status: int, stderr: int) -> bool:
        pid = os.fork()
        if pid:
            os.close(stderr)
            os.write(status, NUMBER.pack(pid))
            process = os.pidfd_open(pid)
            self._running[process] = pid, status
            self._selector.register(process, selectors.EVENT_READ)
            return False
        self._selector.close()
        self._requests.close()
        os.dup2(stderr, 2)
        for descriptor in (status, stderr, *self._running, *(each for _, each in self._running.values())):
            os.close(descriptor)
        request = json.loads(message)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = ["kvatlas", *request["arguments"]]
        sys.path.insert(0, request["folder"])
        return True

    def _ended(self, process: int) -> None:
        pid, status = self._running.pop(process)
        self._selector.unregister(process)
        os.close(process)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the test has ended without waiting for it
            os.write(status, NUMBER.pack(ended))
        os.close(status)


if __name__ == "__main__":
    for name in _IMPORTED:
        importlib.import_module(name)
    if _Nursery(socket.socket(fileno=int(sys.argv[1]))).serve():
        sys.modules["kvatlas.app.cli.main"].main()
