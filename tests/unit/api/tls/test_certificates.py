"""Certificates from files that change, break and disappear, and generated ones."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec
import pytest
from prometheus_client.metrics_core import Metric

from kvatlas.api.errors import TlsError
from kvatlas.api.tls.certificates import Certificates, make_certificates
from kvatlas.api.tls.metrics import tls_families
from kvatlas.api.tls.mismatches import Mismatches
from kvatlas.api.tls.self_signed import VALID_FOR, self_signed
from kvatlas.configs.listeners import TlsConfig
from support.certificates import CertificateFiles, certificate_files, refused_pair


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return certificate_files(tmp_path)


def test_identity_has_the_content_of_the_files(files: CertificateFiles) -> None:
    certificates = Certificates(files.config)

    identity = certificates.current()

    assert (identity.key, identity.chain, identity.client_ca) == (files.key, files.certificate, None)
    assert identity.not_after == pytest.approx(time.time() + VALID_FOR.total_seconds(), abs=60)
    assert not certificates.asks_clients
    assert certificates.current() is identity


def test_identity_has_the_authority_for_clients(files: CertificateFiles) -> None:
    config = msgspec.structs.replace(files.config, client_ca_file=files.config.cert_file)

    certificates = Certificates(config)

    assert certificates.asks_clients
    assert certificates.current().client_ca == files.certificate


def test_new_files_are_taken_when_they_are_replaced(files: CertificateFiles) -> None:
    certificates = Certificates(files.config)
    files.renew()

    assert certificates.current().chain == files.certificate
    assert (certificates.n_reloads, certificates.n_failures) == (1, 0)


@pytest.mark.parametrize(
    ("key", "certificate"),
    [
        pytest.param(b"", None, id="empty_key"),
        pytest.param(None, b"no PEM", id="no_certificate"),
        pytest.param(self_signed()[0], None, id="key_alone_was_replaced"),
    ],
)
def test_identity_stays_while_files_cannot_be_used(
    key: bytes | None, certificate: bytes | None, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(files.config)
    before = certificates.current()
    files.write(key=key, certificate=certificate)

    with caplog.at_level(logging.WARNING):
        assert [certificates.current(), certificates.current()] == [before, before]

    assert (certificates.n_reloads, certificates.n_failures) == (0, 1)
    assert len(caplog.records) == 1, "a change is tried once"
    files.renew()
    assert certificates.current().chain == files.certificate


def test_identity_stays_when_files_disappear(files: CertificateFiles) -> None:
    certificates = Certificates(files.config)
    before = certificates.current()
    (files.folder / "tls.crt").unlink()

    assert certificates.current() is before
    assert certificates.n_failures == 1


def test_pair_that_openssl_refuses_is_named_at_the_start(files: CertificateFiles) -> None:
    key, certificate = refused_pair()
    files.write(key=key, certificate=certificate)

    with pytest.raises(TlsError, match=rf"server\.tls\.certFile: OpenSSL refuses {files.folder}/tls\.crt"):
        Certificates(files.config)


def test_identity_stays_while_openssl_refuses_the_changed_pair(files: CertificateFiles) -> None:
    certificates = Certificates(files.config)
    before = certificates.current()
    key, certificate = refused_pair()
    files.write(key=key, certificate=certificate)

    assert certificates.current() is before
    assert (certificates.n_reloads, certificates.n_failures) == (0, 1)


ENCRYPTED = (
    b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAg=\n"
    b"-----END ENCRYPTED PRIVATE KEY-----\n"
)


@pytest.mark.parametrize(
    ("key", "certificate", "client_ca", "message"),
    [
        pytest.param(None, b"x", None, "server.tls.certFile: {}/tls.crt holds no PEM certificates", id="certificate"),
        pytest.param(b"x", None, None, "server.tls.keyFile: {}/tls.key holds no PEM private key", id="key"),
        pytest.param(ENCRYPTED, None, None, "server.tls.keyFile: {}/tls.key holds no PEM private", id="password"),
        pytest.param(None, None, b"x", "server.tls.clientCaFile: {}/ca holds no PEM certificates", id="client_ca"),
        pytest.param(
            self_signed()[0], None, None, "server.tls.keyFile: the key in {}/tls.key is not that of", id="other_key"
        ),
    ],
)  # fmt: skip
def test_broken_files_are_named_at_the_start(
    key: bytes | None,
    certificate: bytes | None,
    client_ca: bytes | None,
    message: str,
    files: CertificateFiles,
) -> None:
    files.write(key=key, certificate=certificate)
    config = files.config
    if client_ca is not None:
        (files.folder / "ca").write_bytes(client_ca)
        config = msgspec.structs.replace(config, client_ca_file=str(files.folder / "ca"))

    with pytest.raises(TlsError) as error:
        Certificates(config)

    assert str(error.value).startswith(message.format(files.folder))


def test_missing_file_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"server\.tls\.keyFile: cannot read .*/tls\.key: No such file"):
        Certificates(CertificateFiles(tmp_path).config)


@pytest.mark.parametrize(
    ("self_signed", "by_default", "is_on"),
    [
        pytest.param("auto", False, False, id="clear_by_default"),
        pytest.param("auto", True, True, id="made_by_default"),
        pytest.param(True, False, True, id="made"),
        pytest.param(False, True, False, id="not_wanted"),
    ],
)
def test_certificate_is_generated_when_configured(
    self_signed: object, *, by_default: bool, is_on: bool
) -> None:
    config = msgspec.convert({"selfSigned": self_signed}, TlsConfig)

    certificates = make_certificates(config, by_default=by_default)

    assert (certificates is not None) == is_on
    if certificates is not None:
        assert b"BEGIN CERTIFICATE" in certificates.current().chain


def test_files_win_over_a_made_certificate(files: CertificateFiles) -> None:
    certificates = make_certificates(files.config, by_default=True)

    assert certificates is not None
    assert certificates.current().chain == files.certificate


def samples(families: list[Metric]) -> dict[str, float]:
    return {
        "".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_show_the_expiry_and_the_changes(files: CertificateFiles) -> None:
    certificates = Certificates(files.config)
    files.renew()

    mismatches = Mismatches()
    mismatches.at("server.extProc")("tls")

    of_metrics = Certificates(files.config, section="server.metricsTls")

    told = samples(list(tls_families((certificates, of_metrics), mismatches)))

    assert told == {
        "kvatlas_tls_certificate_end_secondsserver.tls": certificates.current().not_after,
        "kvatlas_tls_reloads_totalserver.tlsused": 1,
        "kvatlas_tls_reloads_totalserver.tlsfailed": 0,
        "kvatlas_tls_certificate_end_secondsserver.metricsTls": of_metrics.current().not_after,
        "kvatlas_tls_reloads_totalserver.metricsTlsused": 0,
        "kvatlas_tls_reloads_totalserver.metricsTlsfailed": 0,
        "kvatlas_tls_mismatches_totalserver.extProctls": 1,
    }
    assert samples(list(tls_families((), Mismatches()))) == {}
