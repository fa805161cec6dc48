"""Prometheus metrics of decisions; docs/metrics.md describes each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from ..fleet.tallies import Tally, Times
from ..scorers.core.decision import Placement

_FAST_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class RoutingMetrics:
    """Counters of requests as they are routed or refused.

    Args:
        registry: shows them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def tally(name: str, text: str, label: str | None = None) -> Tally:
            return Tally(name, text, label, registry=registry)

        self._picks = tally("picks", "Requests sent to an endpoint.", "endpoint")
        self._refusals = tally("refusals", "Requests answered without being routed.", "code")
        self._denied = tally("requests_denied", "Requests that an admitter refused.", "plugin")
        self._no_prefix = tally("prompts_without_prefix", "Routed requests without token ids.", "reason")
        self._prefix_cut = tally(
            "prompts_cut", "Routed requests whose token ids are known only at the start.", "reason"
        )
        self._prompt_tokens = tally("prompt_tokens", "Tokens of routed prompts.")
        self._estimated_tokens = tally(
            "estimated_prompt_tokens",
            "Estimated tokens of routed prompts whose token ids are missing or cut.",
        )
        self._usable_tokens = tally("usable_prefix_tokens", "Prompt tokens cached on the picked endpoint.")
        self._placements = tally("placements", "Routed requests, by what a profile handler placed.", "kind")
        self._missing = tally(
            "stages_missing",
            "Requests refused for want of a server of a stage, or of the named profile.",
            "stage",
        )
        self._stage_picks = Counter(
            "kvatlas_stage_picks",
            "Stages of requests done by another endpoint than the one that answers.",
            ["stage", "endpoint"],
            registry=registry,
        )
        self._faults = Counter(
            "kvatlas_plugin_faults",
            "Plugin answers that had to be repaired.",
            ["plugin", "reason"],
            registry=registry,
        )
        self._staged: set[str] = set()
        """Endpoints with a series of stages."""
        self.decision_seconds = Times(
            "decision_seconds", "Time from the whole body to the decision.", _FAST_SECONDS, registry=registry
        )

    def picked(self, endpoint: str) -> None:
        """Count a request that was sent to the endpoint."""
        self._picks.add(endpoint)

    def refused(self, code: str) -> None:
        """Count a request that was refused."""
        self._refusals.add(code)

    def denied(self, plugin: str) -> None:
        """Count a request that an admitter refused."""
        self._denied.add(plugin)

    def placed(self, placement: Placement) -> None:
        """Count the placement of a routed request, and the endpoints of its other stages."""
        self._placements.add(placement.kind)
        for stage in placement.stages:
            for endpoint in stage.decision.picked:
                self._stage_picks.labels(stage.name, endpoint).inc()
                self._staged.add(endpoint)

    def missing(self, stage: str) -> None:
        """Count a request that was refused for want of a server of a stage."""
        self._missing.add(stage)

    def no_prefix(self, reason: str) -> None:
        """Count a request without token ids."""
        self._no_prefix.add(reason)

    def prefix_cut(self, reason: str) -> None:
        """Count a request whose token ids end before its prompt does."""
        self._prefix_cut.add(reason)

    def prompt_known(self, *, tokens: int, usable: int) -> None:
        """Count the tokens of a routed prompt, and those cached on the picked endpoint."""
        self._prompt_tokens.add(n=tokens)
        self._usable_tokens.add(n=usable)

    def prompt_estimated(self, *, tokens: int) -> None:
        """Count the estimated tokens of a routed prompt whose ids are missing or cut."""
        self._estimated_tokens.add(n=tokens)

    def plugin_fault(self, plugin: str, reason: str) -> None:
        """Count a plugin's result that had to be repaired."""
        self._faults.labels(plugin, reason).inc()

    def forget(self, endpoint: str) -> None:
        """End the series of an endpoint."""
        self._picks.forget(endpoint)
        if endpoint in self._staged:
            self._staged.discard(endpoint)
            self._stage_picks.remove_by_labels({"endpoint": endpoint})
