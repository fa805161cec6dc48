"""Errors of scraping.

KVAtlasError
└── ScrapeError    a scrape failed
"""

from __future__ import annotations

from ...events.errors import KVAtlasError


class ScrapeError(KVAtlasError):
    """A scrape failed.

    `reason` is a counter label: `timeout`, `unreachable`, `http_status`, `too_large`, `malformed` or
    `missing_series`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
