"""The model's name in a response: the name that the client used, if the engine was sent another."""

from __future__ import annotations

import re

import msgspec

from ...routing.router import ModelRewrite


class ModelName:
    """Replaces the value of `"model"` in a body of chunks cut anywhere.

    The last bytes of a chunk are held back while they may begin a member to replace.

    Args:
        rewrite: the change of the request.
    """

    def __init__(self, rewrite: ModelRewrite) -> None:
        target = msgspec.json.encode(rewrite.target)
        # Engines write the member with or without a blank after the colon.
        self._members = tuple(b'"model":' + blank + target for blank in (b"", b" "))
        self._pattern = re.compile(rb'("model": ?)' + re.escape(target))
        asked_for = msgspec.json.encode(rewrite.asked_for)
        self._replacement = rb"\g<1>" + asked_for.replace(b"\\", rb"\\")
        self._held = b""

    def restored(self, chunk: bytes, *, end: bool) -> bytes:
        """Return the bytes that can be forwarded, with the client's name in them; all of them at the `end`."""
        data = self._pattern.sub(self._replacement, self._held + chunk)
        n_held = 0 if end else self._n_open(data)
        self._held = data[len(data) - n_held :]
        return data[: len(data) - n_held]

    def _n_open(self, data: bytes) -> int:
        """Return how many bytes at the end of `data` begin a member without ending it."""
        start = max(0, len(data) - len(self._members[1]) + 1)
        while (start := data.find(b'"', start)) >= 0:
            tail = data[start:]
            if any(member.startswith(tail) for member in self._members):
                return len(tail)
            start += 1
        return 0
