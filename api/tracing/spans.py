"""Spans of one decision. Source of names and attributes: spans of llm-d-router at ebab68792, received."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import Span, Tracer
from opentelemetry.util.types import Attributes

from ...scorers.core.decision import Decision

MAX_TOP = 5
"""Endpoints named in a span, best first."""


class DecisionSpans:
    """Writes the spans of decisions below the span of their request.

    The parts of a decision are computed together, so that all of its spans have the same times.

    Args:
        tracer: makes spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def write(self, decision: Decision, above: Span, *, start_ns: int, end_ns: int) -> None:
        """Write the spans of a decision. Cost: about 40 us per span, one per scorer and four more.

        Args:
            decision: of a request.
            above: span in which it was made.
            start_ns: wall-clock time of its start.
            end_ns: of its end.
        """

        def child(name: str, parent: Span, attributes: Attributes) -> Span:
            context = trace.set_span_in_context(parent)
            return self._tracer.start_span(name, context, start_time=start_ns, attributes=attributes)

        names, totals = decision.kept_names, decision.totals
        request = {"gen_ai.request.model": decision.model}
        if decision.origin is not None:
            request["gen_ai.request.id"] = decision.origin.request_id
        profile = child("run_scheduler_profile", above, {"llm_d.epp.scheduling.profile.name": "default"})
        filtering = child(
            "filter_endpoints",
            profile,
            {
                "llm_d.epp.filter.candidate_endpoints": len(names) + decision.n_dropped,
                "llm_d.epp.filter.filtered_endpoints": len(names),
                **request,
            },
        )
        scoring = child(
            "llm_d.epp.scoring",
            profile,
            {
                "llm_d.epp.scorer.count": len(decision.scorers),
                "llm_d.epp.scoring.candidate_endpoints": len(names),
                **request,
            },
        )
        scorers = [
            child(
                f"llm_d.epp.scorer.{scorer.type}",
                scoring,
                {
                    "llm_d.epp.scorer.type": scorer.type,
                    "llm_d.epp.scorer.name": scorer.name,
                    "llm_d.epp.scorer.weight": scorer.weight,
                    "llm_d.epp.scorer.candidate_endpoints": len(names),
                    "llm_d.epp.scorer.endpoints_scored": len(scores),
                    **(
                        {
                            "llm_d.epp.scorer.score.max": float(scores.max()),
                            "llm_d.epp.scorer.score.avg": float(scores.mean()),
                        }
                        if len(scores)
                        else {}
                    ),
                },
            )
            for scorer, scores in zip(decision.scorers, decision.scores, strict=True)
        ]
        top = (-totals).argsort(kind="stable")[:MAX_TOP].tolist()
        picking = child(
            "pick_endpoints",
            profile,
            {
                "llm_d.epp.picker.candidate_endpoints": len(names),
                "llm_d.epp.picker.top_endpoints": [names[row] for row in top],
                "llm_d.epp.picker.top_scores": [float(totals[row]) for row in top],
                **request,
            },
        )
        for span in (filtering, *scorers, scoring, picking, profile):
            span.end(end_ns)
