"""`/v1/policy`: the policy in force, and its change."""

from __future__ import annotations

from fastapi import APIRouter

from ...configs.policies import policy_of
from ...routing.plan.cost_models import known_costs
from ...routing.plan.live import LiveConfig
from .answers import Answers
from .force import Force
from .models import ChangedOut
from .policy_models import CostsOut, PolicyIn, PolicyOut


def policy_routes(live: LiveConfig, answers: Answers) -> APIRouter:
    """Return the routes of `/v1/policy`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/policy", summary="The policy in force")
    async def policy() -> PolicyOut:
        """Return the name of the policy in force, and the costs that it has learned."""
        costs = [
            CostsOut(
                scorer=scorer,
                group=known.group,
                state=known.state.value,
                observations=round(known.n_observations, 1),
                says=known.says,
            )
            for scorer, known in known_costs(live.plan.profile)
        ]
        return PolicyOut(generation=live.generation, policy=policy_of(live.in_force), costs=costs)

    @router.put("/policy", summary="Change the policy")
    async def change(body: PolicyIn, *, force: Force = False) -> ChangedOut:
        """Choose endpoints by this policy from the next decision on, also in place of plugins.

        The file is not written: when it is loaded again, its policy is in force.
        """
        return await answers.set_policy(body.policy, force=force)

    return router
