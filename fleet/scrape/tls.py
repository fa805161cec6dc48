"""TLS of scraping."""

from __future__ import annotations

import ssl
from functools import lru_cache

from ...configs.scraping import ScrapeTlsConfig
from .errors import ScrapeError


@lru_cache(maxsize=4)  # making one takes 20 ms
def tls_context(config: ScrapeTlsConfig) -> ssl.SSLContext:
    """Return the TLS context of these settings.

    Raises:
        ScrapeError: a file cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
        if not config.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file or None)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (config.ca_file, config.cert_file, config.key_file)))
        raise ScrapeError("unreachable", f"metricsScrape.tls: cannot use {files}: {error}") from error
    return context
