"""Bodies of `/v1/policy`."""

from __future__ import annotations

from pydantic import Field

from ...configs.section import PolicyName
from .models import Own


class PolicyIn(Own):
    """Body of `PUT /v1/policy`."""

    policy: PolicyName


class CostsOut(Own):
    """Costs in force for one group of endpoints, by one plugin."""

    scorer: str = Field(description="name of the plugin")
    group: str = Field(description="value of its group label; empty without one")
    state: str = Field(description="which costs are in force: fixed, few, rejected or learned")
    observations: float = Field(description="times to first token that the fit rests on")
    says: str = Field(description="the same in a sentence, with the errors of predictions")


class PolicyOut(Own):
    """Answer of `GET /v1/policy`."""

    generation: int = Field(description="of the configuration in force")
    policy: str = Field(description="weights or latency, or plugins for a configuration that lists its own")
    costs: list[CostsOut] = Field(
        default=[], description="costs in force, by plugin and group; empty for a policy without a cost model"
    )
