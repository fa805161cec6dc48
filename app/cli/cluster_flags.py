"""The reference endpoint picker's flags for the cluster; they override the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from ...configs.schema import EndpointsConfig, KVAtlasConfig


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """Flags, None for one that was not given.

    Attributes:
        pool_name: InferencePool.
        pool_namespace: its namespace.
        pool_group: its API group.
        endpoint_selector: label selector of pods, in place of a pool.
        endpoint_target_ports: ports with commas between.
        kubeconfig: file.
        leader_election: whether to take part in leader election.
    """

    pool_name: str | None = None
    pool_namespace: str | None = None
    pool_group: str | None = None
    endpoint_selector: str | None = None
    endpoint_target_ports: str | None = None
    kubeconfig: str | None = None
    leader_election: Literal["true", "false"] | None = None

    @property
    def name_endpoints(self) -> bool:
        """Whether they name a source of endpoints."""
        return bool(self.pool_name or self.endpoint_selector)

    def of(self, config: KVAtlasConfig) -> KVAtlasConfig:
        """Return the configuration with the flags applied.

        Raises:
            ValueError: a flag cannot be used.
        """
        endpoints, election = config.endpoints, config.leader_election
        given = self._given()
        if self.name_endpoints:  # replaces the source that the configuration names
            anywhere = replace(endpoints.kubernetes, inference_pool="", endpoint_selector="", target_ports=())
            endpoints = EndpointsConfig(kubernetes=replace(anywhere, **given))
        elif given:
            endpoints = replace(endpoints, kubernetes=replace(endpoints.kubernetes, **given))
        if self.leader_election is not None:
            election = replace(election, enabled=self.leader_election == "true")
        return replace(config, endpoints=endpoints, leader_election=election)

    def _given(self) -> Mapping[str, object]:
        flags = {
            "inference_pool": self.pool_name,
            "namespace": self.pool_namespace,
            "pool_group": self.pool_group,
            "endpoint_selector": self.endpoint_selector,
            "target_ports": None
            if self.endpoint_target_ports is None
            else _ports(self.endpoint_target_ports),
            "kubeconfig": self.kubeconfig,
        }
        return {name: value for name, value in flags.items() if value is not None}


def _ports(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= 65535 for part in parts):
        raise ValueError(
            f"--endpoint-target-ports: found {text!r}, expected ports with commas between, such as 8000,8001"
        )
    return tuple(map(int, parts))
