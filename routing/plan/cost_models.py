"""The cost models of the configuration in force, by the name of the plugin that has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...scorers.core.scheduler import Deciding, Scheduler
from ...scorers.handlers.joint_cost import JointCostHandler
from ...scorers.latency.cost import LatencyCostScorer
from ...scorers.latency.cost_model import CostModel
from ...scorers.latency.knowledge import Knowledge, knowledge
from ...scorers.latency.predictor import LatencyPredictor


class NamedKnowledge(NamedTuple):
    """Costs in force for one group of endpoints, by the name of the plugin."""

    scorer: str
    known: Knowledge


def cost_models(profile: Deciding) -> dict[str, CostModel]:
    """Return the models of endpoints that serve requests alone."""
    models = {
        name: scorer.model for name, scorer, _ in profile.scorers if isinstance(scorer, LatencyCostScorer)
    }
    if profile.predictor is not None:
        name, predictor = profile.predictor
        if isinstance(predictor, LatencyPredictor):
            models[name] = predictor.model
    handler = joint_handler(profile)
    if handler is not None:
        models[handler.type] = handler.model.alone
    return models


def joint_handler(profile: Deciding) -> JointCostHandler | None:
    """Return the handler that has a model of pairs, None if there is none."""
    handler = profile.handler if isinstance(profile, Scheduler) else None
    return handler if isinstance(handler, JointCostHandler) else None


def known_costs(profile: Deciding) -> Iterator[NamedKnowledge]:
    """Yield the costs in force by plugin and group. Cost: O(groups)."""
    for name, model in cost_models(profile).items():
        for known in knowledge(model.ttft.fits, model.tpot.fits, learns=model.learns):
            yield NamedKnowledge(name, known)
