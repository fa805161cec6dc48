"""TLS contexts of scraping, and the files that they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.scraping import ScrapeTlsConfig
from kvatlas.fleet.scrape.errors import ScrapeError
from kvatlas.fleet.scrape.tls import tls_context
from support.certificates import certificate_files


def test_context_is_kept_until_a_file_is_replaced(tmp_path: Path) -> None:
    files = certificate_files(tmp_path)
    config = ScrapeTlsConfig(cert_file=files.config.cert_file, key_file=files.config.key_file)
    first = tls_context(config)

    assert tls_context(config) is first
    files.renew()
    second = tls_context(config)
    assert second is not first
    assert tls_context(config) is second


def test_files_that_cannot_be_used_are_named_and_read_again(tmp_path: Path) -> None:
    files = certificate_files(tmp_path)
    key = files.key
    files.write(key=b"no key")
    config = ScrapeTlsConfig(cert_file=files.config.cert_file, key_file=files.config.key_file)

    with pytest.raises(ScrapeError, match=r"cannot use .*tls\.crt, .*tls\.key"):
        tls_context(config)
    files.write(key=key)
    tls_context(config)
