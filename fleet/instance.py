"""Identity of an endpoint in the standard REST contract."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_TENANT = "default"
"""Tenant of configured and discovered endpoints, and of clients that name none."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of one tenant.

    Attributes:
        name: unique within the tenant.
        tenant: name of the tenant.
        model: model that it serves; None for the configured one.
        salt: `cache_salt` that matches the blocks of this instance, as queries without salt do.
        fills_fleet: whether its shared tiers are those of the configured fleet: a store that the fleet's engines fill.
    """

    name: str
    tenant: str = DEFAULT_TENANT
    model: str | None = None
    salt: str | None = None
    fills_fleet: bool = False

    @property
    def space(self) -> str:
        """Key of the instances that share its shared tiers; empty for the configured fleet."""
        main = self.tenant == DEFAULT_TENANT and (self.model is None or self.fills_fleet)
        return "" if main else f"{self.tenant}/{self.model or ''}"

    @property
    def endpoint(self) -> str:
        """Name of its endpoint: the instance's name, outside the default tenant `INSTANCE@TENANT`."""
        return self.name if self.tenant == DEFAULT_TENANT else f"{self.name}@{self.tenant}"
