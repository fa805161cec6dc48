"""The report of `kvatlas explain`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

from ...api.rest.decision_models import (
    CounterfactualOut,
    DecisionOut,
    DecisionsOut,
    PlacementOptionOut,
    PredictedOut,
    ScoredEndpointOut,
    ScoreOut,
    SloOut,
    StageOut,
)
from .client import Client
from .top.names import clean

MAX_TIED = 20
"""Names of a tie that are shown; in an idle fleet all endpoints are equal."""

PREFILL = "prefill"
"""Name of the stage in answers; its module would import numpy, which a question does not need."""


def fetch_decision(client: Client, request_id: str | None) -> DecisionOut | None:
    """Return a kept decision.

    Args:
        client: of the running process.
        request_id: None for the newest.
    Returns:
        None if it is not kept.
    Raises:
        AskError: as of `Client.require`.
    """
    if request_id is not None:
        found = client.get(f"/v1/decisions/{quote(request_id, safe='')}", DecisionOut)
        if found is not None:
            return found
    # also tells an address that is not kvatlas's from a request that is not kept
    newest = client.require("/v1/decisions?limit=1", DecisionsOut)
    if request_id is not None or not newest.decisions:
        return None
    return client.get(f"/v1/decisions/{quote(newest.decisions[0].request_id, safe='')}", DecisionOut)


def print_decision(console: Console, decision: DecisionOut) -> None:
    """Print a table of the candidates, best first, and the reasons of the pick."""
    console.print(_title(decision), highlight=False, markup=False)
    _print_candidates(console, decision)
    if (placement := decision.placement) is not None:
        for stage in placement.stages:
            console.print(
                f"\n{stage.name}, profile {stage.profile} -> {', '.join(stage.picked)}", highlight=False
            )
            _print_candidates(console, stage)
            if stage.tie:
                console.print("tie: chance decided", highlight=False)
            for fault in stage.faults:
                console.print(f"fault of {fault.name}: {fault.reason}, {fault.detail}", highlight=False)
        if placement.options:
            _print_options(console, placement.options)
        if placement.lacking is not None:
            console.print(f"refused: no server can do the stage {placement.lacking}", highlight=False)
    for name in _names_with_parts(decision):
        _print_parts(console, decision, name)
    for line in _reasons(decision):
        console.print(line, highlight=False, markup=False)


def _print_candidates(console: Console, decision: DecisionOut | StageOut) -> None:
    table = Table(box=None, pad_edge=False)
    terms: list[ScoreOut] = max((each.scores for each in decision.endpoints), key=len)
    table.add_column("endpoint", overflow="fold")
    for heading in ("total", *(f"{term.name} x {term.weight:g}" for term in terms)):
        table.add_column(heading, justify="right", overflow="fold")
    for heading in ("cached", "trust", ""):
        table.add_column(heading, overflow="fold")
    for endpoint in sorted(decision.endpoints, key=lambda each: (each.filtered_by is not None, -each.total)):
        table.add_row(*_row(endpoint, decision, n_terms=len(terms)))
    console.print(table, highlight=False)


def _names_with_parts(decision: DecisionOut) -> list[str]:
    """Return the names of the scorers whose input has parts."""
    first = next((each for each in decision.endpoints if each.scores), None)
    return [] if first is None else [each.name for each in first.scores if each.parts_ms is not None]


def _print_parts(console: Console, decision: DecisionOut, name: str) -> None:
    """Print the parts of each endpoint's cost, cheapest endpoint first; parts that are 0 for all are left out."""
    costs = [
        (term.raw or 0.0, each.name, term.parts_ms)
        for each in decision.endpoints
        for term in each.scores
        if term.name == name and term.parts_ms is not None
    ]
    names = [part for part in costs[0][2] if any(round(parts.get(part, 0.0)) for _, _, parts in costs)]
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{name}, ms", overflow="fold")
    for heading in ("total", *names, ""):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for total, endpoint, parts in sorted(costs):
        cells = (f"{parts.get(part, 0.0):.0f}" for part in names)
        table.add_row(endpoint, f"{total:.0f}", *cells, "picked" if endpoint in decision.picked else "")
    console.print(table, highlight=False)


def _print_options(console: Console, options: list[PlacementOptionOut]) -> None:
    """Print the costs of the chosen placement and of the best others, without parts that are 0 in all."""
    names = [name for name in options[0].terms_ms if any(each.terms_ms.get(name) for each in options)]
    table = Table(box=None, pad_edge=False)
    table.add_column("placement, ms", overflow="fold")
    for heading in ("total", *names, ""):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for number, each in enumerate(options):
        where = f"{each.prefill} -> {each.decode}" if each.prefill is not None else f"{each.decode} alone"
        parts = (f"{each.terms_ms.get(name, 0.0):.0f}" for name in names)
        table.add_row(where, f"{each.total_ms:.0f}", *parts, "" if number else "picked")
    console.print(table, highlight=False)


def _title(decision: DecisionOut) -> str:
    when = decision.time.astimezone().isoformat(sep=" ", timespec="milliseconds")
    picked = ", ".join(decision.picked) or "nobody"
    prefill = next((each for each in _stages(decision) if each.name == PREFILL), None)
    computing = prefill if prefill is not None else decision
    cached = next(
        (e.prefix for e in computing.endpoints if e.name in computing.picked[:1] and e.prefix), None
    )
    about = "about " if decision.tokens_estimated else ""
    where = f"on {prefill.picked[0]}, which computes it" if prefill is not None else "there"
    of = f", {cached.usable_tokens} of them cached {where}" if cached else ""
    # both come from the client, and may hold what a terminal obeys
    request_id, model = clean(decision.request_id), clean(decision.model) or "no model"
    return f"{request_id}  {when}\n{model}, {about}{decision.tokens} tokens{of} -> {picked}"


def _stages(decision: DecisionOut) -> list[StageOut]:
    return decision.placement.stages if decision.placement is not None else []


def _row(endpoint: ScoredEndpointOut, decision: DecisionOut | StageOut, *, n_terms: int) -> list[str]:
    if endpoint.filtered_by is not None:
        note = f"dropped by {endpoint.filtered_by}: {endpoint.filter_reason}"
        return [endpoint.name, "", *[""] * n_terms, _cached(endpoint), endpoint.trust, note]
    terms = [_term(term.product, term.raw, term.age_seconds) for term in endpoint.scores]
    note = "picked" if endpoint.name in decision.picked else ""
    return [endpoint.name, f"{endpoint.total:.4g}", *terms, _cached(endpoint), endpoint.trust, note]


def _term(product: float, raw: float | None, age_s: float | None) -> str:
    """Return `1.5 (12, 40 ms)`: product, input and age of the input."""
    inputs = [] if raw is None else [f"{raw:.4g}"]
    inputs += [] if age_s is None else [f"{age_s * 1000:.0f} ms"]
    return f"{product:.4g}" + (f" ({', '.join(inputs)})" if inputs else "")


def _cached(endpoint: ScoredEndpointOut) -> str:
    if endpoint.prefix is None:
        return ""
    tiers = [f"{tier} {tokens}" for tier, tokens in endpoint.prefix.tier_tokens.items() if tokens]
    predicted = endpoint.prefix.predicted_tokens
    return (", ".join(tiers) or "0") + (f" ({predicted} predicted)" if predicted else "")


def _reasons(decision: DecisionOut) -> Iterator[str]:
    if decision.tie and decision.tied:
        more = len(decision.tied) - MAX_TIED
        rest = f" and {more} more" if more > 0 else ""
        yield f"tie: chance decided between {', '.join(decision.tied[:MAX_TIED])}{rest}"
    for label, reason in (("no prefix", decision.no_prefix_reason), ("prefix cut", decision.cut_reason)):
        if reason is not None:
            yield f"{label}: {reason}"
    if decision.slo is not None:
        yield f"objectives: {_objectives(decision.slo)}"
    for endpoint in decision.endpoints:
        if endpoint.name in decision.picked[:1] and endpoint.predicted is not None:
            yield f"predicted on {endpoint.name}: {_predicted(endpoint.predicted)}"
    for fault in decision.faults:
        yield f"fault of {fault.name}: {fault.reason}, {fault.detail}"
    if (audited := decision.audited) is not None:
        where = f" in {audited.tier}" if audited.tier else ""
        expected, reused = sum(audited.expected_tokens.values()), sum(audited.reused_tokens.values())
        yield f"audit: {audited.verdict}{where}, expected {expected} cached tokens, the engine reused {reused}"
    if (change := decision.counterfactual) is not None:
        yield _counterfactual(change)


def _objectives(slo: SloOut) -> str:
    limits = (("first token", slo.ttft_ms), ("output token", slo.tpot_ms))
    return ", ".join(f"{what} within {limit:g} ms" for what, limit in limits if limit is not None)


def _predicted(times: PredictedOut) -> str:
    first = f"first token in {times.ttft_ms:.0f} ms (headroom {times.ttft_headroom_ms:.0f} ms)"
    if times.tpot_ms is None:
        return first
    return f"{first}, output token in {times.tpot_ms:.1f} ms (headroom {times.tpot_headroom_ms:.1f} ms)"


def _counterfactual(change: CounterfactualOut) -> str:
    direction = "above" if change.new_weight > change.weight else "below"
    return (
        f"with the weight of {change.scorer} {direction} {change.new_weight:.6g} (it is {change.weight:g}) "
        f"the pick would be {' or '.join(change.picks)}"
    )
