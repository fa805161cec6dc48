"""The id of a response of the responses API, by which later requests name it."""

from __future__ import annotations

import re

from ...routing.stored_responses import RESPONSE_ID

_NAMED = re.compile(rb'"id"\s*:\s*"(' + RESPONSE_ID.encode() + rb')"')

MAX_BEGINNING_BYTES = 4096
"""Beginning of a body that is searched. vLLM and SGLang write the id first, others after a few short fields."""


class ResponseId:
    """Reads the id out of the beginning of a body, cut anywhere: of a JSON object, or of the first event of a stream."""

    __slots__ = ("_beginning", "is_over", "value")

    def __init__(self) -> None:
        self._beginning = b""
        self.value = ""
        """Empty until it is found."""
        self.is_over = False
        """Whether it was found, or will not be."""

    def feed(self, piece: bytes) -> None:
        """Read the next piece of the body."""
        self._beginning += piece[: MAX_BEGINNING_BYTES - len(self._beginning)]
        found = _NAMED.search(self._beginning)
        if found is not None:
            self.value = found[1].decode()
        self.is_over = found is not None or len(self._beginning) == MAX_BEGINNING_BYTES
