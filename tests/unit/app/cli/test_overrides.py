"""Flags of `kvatlas serve` about listeners, on top of the reference's defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvatlas.app.cli.cluster_flags import ClusterFlags
from kvatlas.app.cli.overrides import Overrides
from kvatlas.app.cli.reference_flags import ReferenceFlags
from kvatlas.configs.listeners import AuthConfig, ServerConfig, TlsConfig
from kvatlas.configs.reference_defaults import with_reference_defaults
from support.fleets import make_config

REFERENCE = with_reference_defaults(make_config(endpoints={"static": []}))
NOTHING = Overrides(
    addresses={},
    ports={},
    compat=None,
    secure_serving=None,
    metrics_endpoint_auth=None,
    cert_path=None,
    cluster=ClusterFlags(),
    reference=ReferenceFlags(),
)


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param({"secure_serving": "true"}, {}, id="secure_serving"),
        pytest.param({"secure_serving": "false"}, {"tls": TlsConfig(self_signed=False)}, id="plain_text"),
        pytest.param(
            {"cert_path": Path("/c")},
            {"tls": TlsConfig(cert_file="/c/tls.crt", key_file="/c/tls.key", http=False)},
            id="certificate",
        ),
        pytest.param({"metrics_endpoint_auth": "false"}, {"auth": AuthConfig()}, id="open_metrics"),
        pytest.param({"metrics_endpoint_auth": "true"}, {}, id="reviewed_metrics"),
        pytest.param({"addresses": {"rest": "127.0.0.1:8080"}}, {"rest": "127.0.0.1:8080"}, id="rest"),
    ],
)
def test_flag_goes_before_the_references_default(flags: dict[str, Any], changes: dict[str, Any]) -> None:
    overrides = Overrides(**({name: getattr(NOTHING, name) for name in NOTHING.__slots__} | flags))

    server: ServerConfig = overrides.apply(REFERENCE).server

    assert server == replace(REFERENCE.server, **changes)
