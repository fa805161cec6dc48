"""The HTTP session of spans. Importing it needs kvatlas[otlp-http]."""

from __future__ import annotations

import time
from typing import Any

import requests

MAX_ANSWER_BYTES = 65536
"""Part of a response that is read. An answer to spans is empty, or a short message; what is longer ends its connection."""

ANSWER_S = 1.0
"""Time after which a response that goes on is left, beside one wait for a byte. A byte now and then would hold the thread that sends."""


class BoundedSession(requests.Session):
    """Sends requests, and reads no more than the beginning of a response, of which only the status counts."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # noqa: ANN401 - as in the library
        """See `requests.Session`."""
        response = super().send(request, **{**kwargs, "stream": True})
        until, left = time.monotonic() + ANSWER_S, MAX_ANSWER_BYTES
        # single bytes: a read of more waits for all of them
        while response.raw.read(1, decode_content=False) and left > 0 and time.monotonic() < until:
            left -= 1
        response.close()
        return response
