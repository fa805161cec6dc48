"""Settings of a stand-in sidecar, from the flags and the environment that the reference sidecar reads."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Connector = Literal["nixlv2", "shared-storage", "sglang", "mooncake", "offloading"]
EncoderConnector = Literal["", "ec-example", "ec-nixl"]

BOOTSTRAP_PORT = 8998
"""Default port of SGLang's and Mooncake's bootstrap servers."""

_UNITS_S = {"ms": 0.001, "s": 1.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a sidecar stands in front of, and how it moves KV caches.

    Attributes:
        engine_port: of the engine's rank 0, on 127.0.0.1; the next ranks have the next ports.
        port: of the listener for rank 0, 0 takes a free one; the next ranks have the next ports.
        ranks: data-parallel ranks.
        connector: how KV caches get from the prefill server to this one.
        encoder_connector: how encoders' results get here; empty: there is no encoder stage.
        pulls: whether KV caches are pulled from the server that `x-kv-cache-source-host-port` names.
        samples_prefill: whether one of several prefill servers in the header is drawn.
        retries: most further attempts of the prefill leg.
        backoff_s: between two attempts.
        mooncake_port: of the prefill engine's Mooncake bootstrap server.
        sglang_port: of the prefill engine's SGLang bootstrap server.
        pull_port: of an engine's rank 0, for pulls.
        pod_ip: address by which `x-data-parallel-host-port` names this pod; empty if it is unknown.
    """

    engine_port: int
    port: int = 0
    ranks: int = 1
    connector: Connector = "nixlv2"
    encoder_connector: EncoderConnector = ""
    pulls: bool = False
    samples_prefill: bool = False
    retries: int = 0
    backoff_s: float = 0.2
    mooncake_port: int = BOOTSTRAP_PORT
    sglang_port: int = BOOTSTRAP_PORT
    pull_port: int = 7777
    pod_ip: str = ""


def from_flags(flags: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings that the reference's flags and environment variables mean.

    Raises:
        SystemExit: a flag is not known here.
    """
    given = _parser(environment).parse_args(flags)
    return Settings(
        engine_port=given.model_server_port,
        port=given.port,
        ranks=given.data_parallel_size,
        connector=given.kv_connector,
        encoder_connector=given.ec_connector,
        pulls=given.enable_p2p_pull or given.kv_connector == "offloading",
        samples_prefill=given.enable_prefiller_sampling,
        retries=given.prefill_max_retries,
        backoff_s=given.prefill_retry_backoff,
        mooncake_port=given.mooncake_bootstrap_port,
        sglang_port=int(environment.get("SGLANG_BOOTSTRAP_PORT", BOOTSTRAP_PORT)),
        pull_port=given.p2p_connector_port,
        pod_ip=environment.get("POD_IP", ""),
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sidecar", allow_abbrev=False)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model-server-port", type=int, default=8200)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--secure-proxy", choices=["false"], required=True)
    parser.add_argument("--kv-connector", default="nixlv2")
    parser.add_argument("--ec-connector", default="")
    parser.add_argument("--enable-p2p-pull", action="store_true")
    sampling = environment.get("ENABLE_PREFILLER_SAMPLING") == "true"
    parser.add_argument("--enable-prefiller-sampling", action="store_true", default=sampling)
    parser.add_argument("--prefill-max-retries", type=int, default=0)
    parser.add_argument("--prefill-retry-backoff", type=_seconds, default=0.2)
    bootstrap = environment.get("MOONCAKE_BOOTSTRAP_PORT", BOOTSTRAP_PORT)
    parser.add_argument("--mooncake-bootstrap-port", type=int, default=int(bootstrap))
    pull = environment.get("P2P_CONNECTOR_PORT", 7777)
    parser.add_argument("--p2p-connector-port", type=int, default=int(pull))
    return parser


def _seconds(text: str) -> float:
    unit = "ms" if text.endswith("ms") else "s"
    return float(text.removesuffix(unit)) * _UNITS_S[unit]
