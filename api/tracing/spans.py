"""Spans of one decision. Source of names and attributes: spans of llm-d-router at ebab68792, received."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.util.types import AttributeValue

from ...scorers.core.columns import FloatArray
from ...scorers.core.decision import Decision, WeightedScorer

MAX_TOP = 5
"""Endpoints named in a span, best first."""

SCOPE = "kvatlas"
"""Name of what writes the spans."""


class SpanWriter:
    """Writes spans that have ended, at a fifth of the cost of those that the library starts and ends.

    Args:
        processor: gets the spans.
        resource: the process.
    """

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        self._processor, self._resource = processor, resource
        self._scope, self._ids = InstrumentationScope(SCOPE), RandomIdGenerator()

    def write(
        self,
        name: str,
        parent: SpanContext,
        times_ns: tuple[int, int],
        attributes: Mapping[str, AttributeValue],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> SpanContext:
        """Write a span from one wall-clock time to another, and return its context."""
        context = SpanContext(
            parent.trace_id,
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=parent.trace_flags,
            trace_state=parent.trace_state,
        )
        self._processor.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                resource=self._resource,
                attributes=attributes,
                kind=kind,
                start_time=times_ns[0],
                end_time=times_ns[1],
                instrumentation_scope=self._scope,
            )
        )
        return context

    def decision(self, decision: Decision, parent: SpanContext, times_ns: tuple[int, int]) -> None:
        """Write the spans of a decision, for each profile one for each scorer and four more.

        The parts of a decision are computed together, so that all of its spans have the same times.
        """
        placement = decision.placement
        for stage in decision.stages:
            self._profile(stage.decision, stage.profile, parent, times_ns)
        self._profile(decision, placement.profile if placement is not None else "default", parent, times_ns)

    def _profile(self, decision: Decision, name: str, parent: SpanContext, times_ns: tuple[int, int]) -> None:
        """Write the spans of one profile's decision."""
        names, totals = decision.kept_names, decision.totals
        request: dict[str, AttributeValue] = {"gen_ai.request.model": decision.model}
        if decision.origin is not None:
            request["gen_ai.request.id"] = decision.origin.request_id
        profile = self.write(
            "run_scheduler_profile", parent, times_ns, {"llm_d.epp.scheduling.profile.name": name}
        )
        filtered = {
            "llm_d.epp.filter.candidate_endpoints": len(names) + decision.n_dropped,
            "llm_d.epp.filter.filtered_endpoints": len(names),
        }
        self.write("filter_endpoints", profile, times_ns, filtered | request)
        scored = {
            "llm_d.epp.scorer.count": len(decision.scorers),
            "llm_d.epp.scoring.candidate_endpoints": len(names),
        }
        scoring = self.write("llm_d.epp.scoring", profile, times_ns, scored | request)
        for scorer, scores in zip(decision.scorers, decision.scores, strict=True):
            self.write(f"llm_d.epp.scorer.{scorer.type}", scoring, times_ns, _rated(scorer, scores))
        top = (-totals).argsort(kind="stable")[:MAX_TOP].tolist()
        picked: dict[str, AttributeValue] = {
            "llm_d.epp.picker.candidate_endpoints": len(names),
            "llm_d.epp.picker.top_endpoints": [names[row] for row in top],
            "llm_d.epp.picker.top_scores": totals[top].tolist(),
        }
        self.write("pick_endpoints", profile, times_ns, picked | request)


def _rated(scorer: WeightedScorer, scores: FloatArray) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "llm_d.epp.scorer.type": scorer.type,
        "llm_d.epp.scorer.name": scorer.name,
        "llm_d.epp.scorer.weight": scorer.weight,
        "llm_d.epp.scorer.candidate_endpoints": len(scores),
        "llm_d.epp.scorer.endpoints_scored": len(scores),
    }
    if len(scores):
        found["llm_d.epp.scorer.score.max"] = float(scores.max())
        found["llm_d.epp.scorer.score.avg"] = float(scores.mean())
    return found
