"""The HTTP session of spans. Importing it needs kvatlas[otlp-http]."""

from __future__ import annotations

from typing import Any

import requests

MAX_ANSWER_BYTES = 65536
"""Part of a response that is read. An answer to spans is empty, or a short message; what is longer ends its connection."""


class BoundedSession(requests.Session):
    """Sends requests, and reads no more than the beginning of a response, of which only the status counts."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # noqa: ANN401 - as in the library
        """See `requests.Session`."""
        response = super().send(request, **{**kwargs, "stream": True})
        response.raw.read(MAX_ANSWER_BYTES, decode_content=False)
        response.close()
        return response
