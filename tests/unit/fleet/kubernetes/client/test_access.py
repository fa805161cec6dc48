from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.fleet.kubernetes.client.access import Access, find_access, read_kubeconfig
from kvatlas.fleet.kubernetes.client.errors import AccessError

HERE = {"cluster": {"server": "https://10.0.0.1:6443/"}, "name": "here"}


def kubeconfig(
    folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **keys: Any
) -> Path:
    found: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "me",
        "clusters": [{"name": "here", "cluster": {"server": "https://10.0.0.1:6443/"} | (cluster or {})}],
        "contexts": [{"name": "me", "context": {"cluster": "here", "user": "u", "namespace": "ns"}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path = folder / "config"
    path.write_bytes(msgspec.yaml.encode(found | keys))
    return path


def data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        pytest.param({}, {}, {}, id="nothing"),
        pytest.param({}, {"token": "t"}, {"token": "t"}, id="token"),
        pytest.param({}, {"tokenFile": "/t"}, {"token": Path("/t")}, id="token_file"),
        pytest.param({"certificate-authority": "ca"}, {}, {"ca": Path("FOLDER/ca")}, id="ca_file_beside"),
        pytest.param(
            {"certificate-authority": "ca", "certificate-authority-data": data("PEM")},
            {},
            {"ca": "PEM"},
            id="ca_data_goes_first",
        ),
        pytest.param(
            {"insecure-skip-tls-verify": True, "tls-server-name": "api"},
            {},
            {"verify": False, "server_name": "api"},
            id="unverified",
        ),
        pytest.param(
            {},
            {"client-certificate": "/c", "client-key": "/k"},
            {"certificate": (Path("/c"), Path("/k"))},
            id="certificate_files",
        ),
        pytest.param(
            {},
            {"client-certificate-data": data("C"), "client-key-data": data("K")},
            {"certificate": ("C", "K")},
            id="certificate_data",
        ),
    ],
)
def test_access_is_the_current_context_when_a_kubeconfig_is_read(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], expected: dict[str, Any]
) -> None:
    expected = {
        key: Path(str(value).replace("FOLDER", str(tmp_path))) if isinstance(value, Path) else value
        for key, value in expected.items()
    }
    found = read_kubeconfig(kubeconfig(tmp_path, cluster=cluster, user=user))
    assert found == Access(url="https://10.0.0.1:6443", namespace="ns", **expected)


def test_access_needs_no_user_when_the_context_names_none(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, contexts=[{"name": "me", "context": {"cluster": "here"}}], users=None)
    assert read_kubeconfig(path) == Access(url="https://10.0.0.1:6443")


@pytest.mark.parametrize(
    ("user", "keys", "message"),
    [
        pytest.param({"exec": {"command": "aws"}}, {}, "a program that makes tokens", id="exec"),
        pytest.param({"username": "me"}, {}, "a password", id="password"),
        pytest.param({"client-certificate": "/c"}, {}, "must both be files", id="certificate_alone"),
        pytest.param(
            {"client-certificate": "/c", "client-key-data": data("K")}, {}, "or both be data", id="mixed"
        ),
        pytest.param({"client-certificate-data": "%"}, {}, "base64", id="no_base64"),
        pytest.param({}, {"current-context": "you"}, "no context 'you'; there are 'me'", id="context"),
        pytest.param({}, {"clusters": []}, "no cluster 'here'; there are none", id="cluster"),
        pytest.param({}, {"users": None}, "no user 'u'", id="user"),
        pytest.param({}, {"clusters": "x"}, "cannot be read", id="type"),
    ],
)
def test_kubeconfig_is_refused_when_it_cannot_be_used(
    tmp_path: Path, user: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path, user=user, **keys)
    with pytest.raises(AccessError, match=message) as refused:
        read_kubeconfig(path)
    assert str(path) in str(refused.value)


def mounted(folder: Path) -> Path:
    for name, text in {"token": "t", "ca.crt": "PEM", "namespace": "mine\n"}.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_access_is_the_pods_own_when_in_a_cluster(tmp_path: Path, host: str, url: str) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    found = find_access("", environment, mounted=mounted(tmp_path))
    assert found == Access(url=url, namespace="mine", ca=tmp_path / "ca.crt", token=tmp_path / "token")


@pytest.mark.parametrize(
    ("given", "environment", "namespace"),
    [
        pytest.param(True, {"KUBECONFIG": "/nowhere", "KUBERNETES_SERVICE_HOST": "h"}, "ns", id="configured"),
        pytest.param(False, {"KUBECONFIG": "GIVEN", "KUBERNETES_SERVICE_HOST": "h"}, "ns", id="variable"),
        pytest.param(False, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": "HOME"}, "mine", id="cluster"),
        pytest.param(False, {"HOME": "HOME"}, "home", id="home"),
    ],
)
def test_access_is_the_first_found_when_there_are_several(
    tmp_path: Path, given: bool, environment: dict[str, str], namespace: str
) -> None:
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    context = {"name": "me", "context": {"cluster": "here", "user": "u", "namespace": "home"}}
    kubeconfig(home / ".kube", contexts=[context])
    path = kubeconfig(tmp_path)
    places = {"GIVEN": str(path), "HOME": str(home)}
    environment = {name: places.get(value, value) for name, value in environment.items()}
    found = find_access(str(path) if given else "", environment, mounted=mounted(tmp_path))
    assert found.namespace == namespace


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        pytest.param({"HOME": "/nowhere"}, "no API server", id="nothing"),
        pytest.param({"KUBECONFIG": "/nowhere/config"}, "/nowhere/config", id="missing_file"),
        pytest.param({"KUBERNETES_SERVICE_HOST": "h"}, "automountServiceAccountToken", id="no_token"),
    ],
)
def test_access_is_refused_when_there_is_none(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(AccessError, match=message):
        find_access("", environment, mounted=tmp_path)


def test_access_is_refused_when_the_port_is_no_number(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "tcp"}
    with pytest.raises(AccessError, match="KUBERNETES_SERVICE_PORT is 'tcp'"):
        find_access("", environment, mounted=mounted(tmp_path))


def test_secrets_are_left_out_when_an_access_is_printed() -> None:
    shown = repr(Access(url="https://h", token="secret", certificate=("secret", "secret")))  # noqa: S106
    assert "secret" not in shown
