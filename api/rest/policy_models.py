"""Bodies of `/v1/policy`."""

from __future__ import annotations

from pydantic import Field

from ...configs.section import PolicyName
from .models import Own


class PolicyIn(Own):
    """Body of `PUT /v1/policy`."""

    policy: PolicyName


class PolicyOut(Own):
    """Answer of `GET /v1/policy`."""

    generation: int = Field(description="of the configuration in force")
    policy: str = Field(description="weights or latency, or plugins for a configuration that lists its own")
