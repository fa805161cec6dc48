"""Flags of `kvatlas serve` about listeners, on top of the reference's defaults."""

from __future__ import annotations

import dataclasses
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


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        pytest.param("127.0.0.1:65535", "2 workers need ports above 65535", id="too_high"),
        pytest.param("127.0.0.1:8000", "port 8001 is also one of server.rest", id="taken_by_a_worker"),
        pytest.param("127.0.0.1:8001", "is also the address at server.rest", id="taken"),
    ],
)
def test_address_of_a_flag_must_fit_the_other_listeners(rest: str, message: str) -> None:
    server = ServerConfig(ext_proc="", health="", metrics="127.0.0.1:8001", workers=2)
    config = replace(REFERENCE, server=server)

    with pytest.raises(ValueError, match=f"^with these flags, server.*{message}"):
        dataclasses.replace(NOTHING, addresses={"rest": rest}).apply(config)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(
            {"cluster": ClusterFlags(endpoint_selector="a")},
            "endpoints.kubernetes.targetPorts",
            id="no_ports",
        ),
        pytest.param(
            {"cluster": ClusterFlags(pool_name="p", endpoint_selector="a")},
            "together with inferencePool",
            id="pool_and_selector",
        ),
        pytest.param(
            {"reference": ReferenceFlags({"metrics-staleness-threshold": "10ms"})},
            "metricsScrape.staleAfter",
            id="stale_before_the_next_scrape",
        ),
        pytest.param(
            {"reference": ReferenceFlags({"metrics-client-ca-file": "/a"})},
            "server.metricsTls.clientCaFile: found",
            id="clients_without_certificate_of_the_server",
        ),
    ],
)
def test_flags_must_fit_the_configuration(flags: dict[str, Any], message: str) -> None:
    config = make_config(endpoints={"static": []})

    with pytest.raises(ValueError, match=f"^with these flags, .*{message}"):
        dataclasses.replace(NOTHING, **flags).apply(config)
