from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.fleet.kubernetes.client.credentials import LOOK_EVERY_S, Credentials
from kvatlas.fleet.kubernetes.client.errors import AccessError

URL = "https://h"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def pem(blob: trustme.Blob) -> str:
    return blob.bytes().decode()


def write(path: Path, text: str) -> Path:
    """Replace the file by another one, as the kubelet does."""
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)
    return path


def test_token_is_read_anew_when_its_time_is_over(tmp_path: Path) -> None:
    credentials = Credentials(Access(URL, token=write(tmp_path / "token", "one\n")))
    assert credentials.token(now=0) == "one"
    write(tmp_path / "token", "two\n")
    assert credentials.token(now=LOOK_EVERY_S - 1) == "one"
    assert credentials.token(now=LOOK_EVERY_S) == "two"


def test_token_is_renewed_at_once_when_it_was_refused(tmp_path: Path) -> None:
    credentials = Credentials(Access(URL, token=write(tmp_path / "token", "one")))
    credentials.token(now=0)
    assert not credentials.renew(now=1)
    write(tmp_path / "token", "two")
    assert credentials.renew(now=2)
    assert credentials.token(now=2) == "two"


def test_token_stays_when_its_file_goes_away(tmp_path: Path) -> None:
    path = write(tmp_path / "token", "one")
    credentials = Credentials(Access(URL, token=path))
    credentials.token(now=0)
    path.unlink()
    assert not credentials.renew(now=1)
    assert credentials.token(now=2 * LOOK_EVERY_S) == "one"


def test_token_stays_while_its_file_is_written_in_place(tmp_path: Path) -> None:
    path = write(tmp_path / "token", "one")
    credentials = Credentials(Access(URL, token=path))
    credentials.token(now=0)
    path.write_text("")
    assert credentials.token(now=LOOK_EVERY_S) == "one"
    path.write_text("two")
    assert credentials.token(now=LOOK_EVERY_S + 1) == "two"


def test_token_is_refused_when_its_file_never_was(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="token"):
        Credentials(Access(URL, token=tmp_path / "token")).token(now=0)


@pytest.mark.parametrize(("token", "sent"), [("t", "t"), (None, "")])
def test_token_is_as_given_when_it_is_in_no_file(token: str | None, sent: str) -> None:
    credentials = Credentials(Access(URL, token=token))
    assert (credentials.token(now=0), credentials.renew(now=0)) == (sent, False)


def test_certificates_are_loaded_anew_when_their_files_change(tmp_path: Path, authority: trustme.CA) -> None:
    path = write(tmp_path / "ca.crt", pem(authority.cert_pem))
    credentials = Credentials(Access(URL, ca=path))
    first = credentials.tls(now=0)
    assert credentials.tls(now=LOOK_EVERY_S) is first
    write(path, pem(trustme.CA().cert_pem))
    assert credentials.tls(now=LOOK_EVERY_S + 1) is first  # looked at a second ago
    second = credentials.tls(now=2 * LOOK_EVERY_S)
    assert second is not first
    path.unlink()
    assert credentials.tls(now=3 * LOOK_EVERY_S) is second


def test_certificates_are_loaded_at_once_when_one_was_refused(tmp_path: Path, authority: trustme.CA) -> None:
    path = write(tmp_path / "ca.crt", pem(authority.cert_pem))
    credentials = Credentials(Access(URL, ca=path))
    first = credentials.tls(now=0)
    assert not credentials.renew_tls(now=1)
    write(path, pem(trustme.CA().cert_pem))
    assert credentials.renew_tls(now=2)
    assert credentials.tls(now=3) is not first


def test_client_certificate_is_loaded_at_once_when_it_was_refused(
    tmp_path: Path, authority: trustme.CA
) -> None:
    """API servers answer an expired one with 401, as a token."""

    def issue() -> tuple[Path, Path]:
        issued = authority.issue_cert("client.example")
        certificate, key = pem(issued.cert_chain_pems[0]), pem(issued.private_key_pem)
        return write(tmp_path / "c", certificate), write(tmp_path / "k", key)

    credentials = Credentials(Access(URL, ca=pem(authority.cert_pem), certificate=issue()))
    first = credentials.tls(now=0)
    assert not credentials.renew(now=1)
    issue()
    assert credentials.renew(now=2)
    assert credentials.tls(now=3) is not first


def test_client_certificate_is_loaded_when_given_as_files_or_data(
    tmp_path: Path, authority: trustme.CA
) -> None:
    issued = authority.issue_cert("client.example")
    certificate, key = pem(issued.cert_chain_pems[0]), pem(issued.private_key_pem)
    files = (write(tmp_path / "c", certificate), write(tmp_path / "k", key))
    for given in (files, (certificate, key)):
        access = Access(URL, ca=pem(authority.cert_pem), certificate=given)
        assert Credentials(access).tls(now=0).verify_mode == ssl.CERT_REQUIRED


def test_old_authorities_of_clusters_are_taken_when_the_default_is_strict(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ssl.create_default_context

    def strict(cadata: str) -> ssl.SSLContext:
        """Create a context with the strict flag that Python 3.13 sets."""
        context = make(cadata=cadata)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    context = Credentials(Access(URL, ca=pem(authority.cert_pem))).tls(now=0)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_server_is_not_verified_when_the_access_says_so() -> None:
    context = Credentials(Access(URL, verify=False)).tls(now=0)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize("ca", [Path("/nowhere/ca.crt"), "no certificate"])
def test_certificates_are_refused_when_they_never_could_be_used(ca: Path | str) -> None:
    with pytest.raises(AccessError, match="certificates for the API server"):
        Credentials(Access(URL, ca=ca)).tls(now=0)
