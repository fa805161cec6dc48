"""TLS of scraping."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

from ...configs.file_watch import FileState, FileWatch
from ...configs.scraping import ScrapeTlsConfig
from .errors import ScrapeError


def tls_context(config: ScrapeTlsConfig) -> ssl.SSLContext:
    """Return the TLS context of these settings, a new one after one of its files was replaced: certificates are renewed.

    Cost: a `stat` for each file.

    Raises:
        ScrapeError: a file cannot be read.
    """
    return _context(config, FileWatch(*map(Path, _files(config))).state())


@lru_cache(maxsize=4)  # making one takes 20 ms
def _context(config: ScrapeTlsConfig, _: FileState) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
        if not config.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file or None)
    except (OSError, ValueError) as error:
        files = ", ".join(_files(config))
        raise ScrapeError("unreachable", f"metricsScrape.tls: cannot use {files}: {error}") from error
    return context


def _files(config: ScrapeTlsConfig) -> list[str]:
    return [file for file in (config.ca_file, config.cert_file, config.key_file) if file]
