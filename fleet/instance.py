"""Who an endpoint is to clients of the standard contract."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_TENANT = "default"
"""Tenant of configured and discovered endpoints, and of whoever names none."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of one tenant.

    Attributes:
        name: unique within the tenant.
        tenant: the tenant.
        model: model it serves; None for the configured one.
        salt: `cache_salt` of queries that mean this instance's blocks as such, beside queries without one.
    """

    name: str
    tenant: str = DEFAULT_TENANT
    model: str | None = None
    salt: str | None = None

    @property
    def space(self) -> str:
        """Whom it shares shared tiers with; empty for the configured fleet."""
        main = self.tenant == DEFAULT_TENANT and self.model is None
        return "" if main else f"{self.tenant}/{self.model or ''}"

    @property
    def endpoint(self) -> str:
        """Name of the endpoint that stands for it: its own, and outside the default tenant `INSTANCE@TENANT`."""
        return self.name if self.tenant == DEFAULT_TENANT else f"{self.name}@{self.tenant}"
