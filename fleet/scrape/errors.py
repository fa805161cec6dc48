"""Errors of scraping.

KVAtlasError
└── ScrapeError    one scrape that gave no report
"""

from __future__ import annotations

from ...events.errors import KVAtlasError


class ScrapeError(KVAtlasError):
    """One scrape gave no report; the message is for people.

    `reason` is a bounded word for counters: `timeout`, `unreachable`, `http_status`, `too_large`, `malformed` or
    `missing_series`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
