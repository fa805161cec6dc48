"""The screen of `kvatlas top`, cut to the terminal's size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ....api.rest.frame_models import LiveDecisionOut, LiveFrame
from ....api.rest.models import EndpointOut, TierOut
from ....api.rest.replica_models import ReplicasOut
from ....events.stream import Trust
from .names import clean
from .rates import RatesOut
from .replicas import replicas_line

TRUST_STYLES = {"live": "green", "replaying": "cyan", "partial": "yellow", "stale": "red", "dark": "bold red"}

FIGURES_CELLS = 11
"""Width of the longest figures, such as `31.2k/31.2k`, so that bars begin in one column."""

BAR_CELLS = 8
EIGHTHS = " ▏▎▍▌▋▊▉"
WARM, HOT = 0.8, 0.95
"""Fill levels from which a capacity is yellow, and red."""

TOP_LINES = 2
"""Lines of an empty line and the headings of endpoints."""

DECISIONS_LINES = 2
"""Lines of an empty line and the headings of decisions."""

FEWEST_ENDPOINTS, FEWEST_DECISIONS = 2, 3
"""Rows that each table gets before the other gets more."""

_ID_CHARS = 12


def screen(
    url: str,
    frame: LiveFrame,
    rates: RatesOut | None,
    *,
    n_lines: int | None,
    replicas: ReplicasOut | None = None,
    gone: str = "",
) -> RenderableType:
    """Return the whole view, cut to `n_lines`.

    Args:
        url: of the process.
        frame: its state.
        rates: of its counters; None while they are unknown.
        n_lines: lines of the terminal; None for no limit.
        replicas: the other replicas; None if the process decides alone.
        gone: age and reason of a lost connection; empty while the process answers.
    """
    head = [_title(url, frame, gone), _rates(rates)]
    if replicas is not None:
        head.append(replicas_line(replicas))
    room = None if n_lines is None else n_lines - len(head) - TOP_LINES
    n_endpoints, n_decisions = _shares(frame.endpoint_count, len(frame.decisions), room)
    parts = [*head, Text(), _endpoints(frame, n_endpoints)]
    if n_decisions:
        parts += [Text(), _decisions(frame.decisions[:n_decisions])]
    return Group(*parts)


def _shares(n_endpoints: int, n_decisions: int, room: int | None) -> tuple[int, int]:
    """Return the rows of both tables in `room` lines: decisions get what endpoints leave, but always a few."""
    if room is None:
        return n_endpoints, n_decisions
    room = max(1, room)
    kept = min(n_decisions, FEWEST_DECISIONS)
    if room - kept - DECISIONS_LINES < FEWEST_ENDPOINTS:
        kept = 0
    left = room - kept - (DECISIONS_LINES if kept else 0)
    if n_endpoints > left:
        return max(1, left - 1), kept  # a line says how many are not shown
    return n_endpoints, max(0, min(n_decisions, room - n_endpoints - DECISIONS_LINES))


def _title(url: str, frame: LiveFrame, gone: str) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(f"kvatlas {clean(url)}", "bold")
    if gone:
        return title.append(f"  gone: {clean(gone)}", "bold red")
    title.append("  ready" if frame.ready else "  not ready", "green" if frame.ready else "bold red")
    title.append(
        f"  {frame.endpoint_count} endpoints, {_short(frame.keys)} keys, {_short(frame.residencies)} residencies in "
        f"{frame.bytes / 2**20:.0f} MiB, configuration {frame.generation}, {frame.time.astimezone():%H:%M:%S}"
    )
    return title


def _rates(rates: RatesOut | None) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    if rates is None:
        return line.append("a second: not known", "dim")
    cached = rates.cached_tokens / rates.prompt_tokens if rates.prompt_tokens else 0.0
    line.append(
        f"a second: {_rate(rates.requests)} requests, {_rate(rates.prompt_tokens)} prompt tokens "
        f"({cached:.0%} cached), {_rate(rates.events)} events"
    )
    for what, rate in (
        ("refused", rates.refusals), ("without prefix", rates.without_prefix), ("batches lost", rates.lost_batches)
    ):  # fmt: skip
        if rate:
            line.append(f", {_rate(rate)} {what}", "yellow")
    return line


def _endpoints(frame: LiveFrame, n_rows: int) -> RenderableType:
    table = _table()
    table.add_column("endpoint", ratio=2, no_wrap=True, min_width=8)
    table.add_column("trust", no_wrap=True)
    for heading in ("wait", "run", "fly", "kv"):
        table.add_column(heading, justify="right", no_wrap=True)
    tiers = list(dict.fromkeys(tier.name for endpoint in frame.endpoints for tier in endpoint.tiers))
    for tier in tiers:
        table.add_column(clean(tier), ratio=2, no_wrap=True, min_width=11)
    for endpoint in _troubled_first(frame.endpoints)[:n_rows]:
        held = {tier.name: tier for tier in endpoint.tiers}
        table.add_row(
            Text(clean(endpoint.name)),
            _trust(endpoint),
            *_load(endpoint),
            *(_tier(held.get(tier)) for tier in tiers),
        )
    n_more = frame.endpoint_count - min(n_rows, len(frame.endpoints))
    if not n_more:
        return table
    return Group(table, Text(f"and {n_more} more, all at /v1/endpoints", "dim"))


def _troubled_first(endpoints: Sequence[EndpointOut]) -> list[EndpointOut]:
    """Sort by trust, least first, then by name."""
    return sorted(endpoints, key=lambda each: (-_ORDER.index(_least_trust(each)), each.name))


_ORDER = [trust.value for trust in Trust]


def _least_trust(endpoint: EndpointOut) -> str:
    return max(
        (publisher.trust for publisher in endpoint.publishers), key=_ORDER.index, default=Trust.DARK.value
    )


def _trust(endpoint: EndpointOut) -> Text:
    if not any(publisher.events for publisher in endpoint.publishers):
        return Text("no events", "dim")
    trust = _least_trust(endpoint)
    return Text(trust, TRUST_STYLES[trust])


def _load(endpoint: EndpointOut) -> Iterator[Text]:
    load = endpoint.load
    if load is None:
        yield from (Text("-", "dim") for _ in range(4))
        return
    yield Text(str(load.waiting), "yellow" if load.waiting else "")
    yield Text(str(load.running))
    yield Text(str(load.in_flight_requests))
    yield Text(f"{load.kv_utilization:.0%}", _heat(load.kv_utilization))


def _tier(tier: TierOut | None) -> Text:
    """Return `812/1.6k    ▉▉▉▌`: blocks held, their bound and a bar; only the blocks if there is no bound."""
    if tier is None or (not tier.residencies and tier.source is None):
        return Text("dark" if tier is not None and tier.dark else "-", "dim")
    cell = Text(overflow="ellipsis")
    bound = f"/{_short(tier.capacity)}" if tier.capacity else ""
    cell.append(f"{_short(tier.residencies)}{bound}".ljust(FIGURES_CELLS))
    if tier.capacity:
        cell.append(f" {_bar(tier.residencies / tier.capacity)}", "blue")
    if tier.source not in (None, "events"):
        cell.append(f" {tier.source}", "dim")
    return cell


def _decisions(decisions: Sequence[LiveDecisionOut]) -> Table:
    table = _table()
    for heading in ("time", "request"):
        table.add_column(heading, no_wrap=True)
    for heading in ("tokens", "cached"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("picked", no_wrap=True, max_width=20)
    table.add_column("won by", ratio=1, no_wrap=True)
    table.add_column("audit", no_wrap=True)
    for decision in decisions:
        table.add_row(
            f"{decision.time.astimezone():%H:%M:%S}",
            Text(clean(decision.request_id)[:_ID_CHARS]),
            _short(decision.tokens),
            Text("-" if decision.usable_tokens is None else _short(decision.usable_tokens)),
            Text(clean(" > ".join(_path(decision)) or "nobody")),
            _reason(decision),
            Text(decision.verdict or "", "" if decision.verdict in (None, "good") else "yellow"),
        )
    return table


def _path(decision: LiveDecisionOut) -> list[str]:
    """Return the endpoints that do the stages of a request, the one that answers last."""
    elsewhere = [name for stage in ("encode", "prefill") for name in decision.stages.get(stage, [])[:1]]
    return elsewhere + decision.picked[:1]


def _reason(decision: LiveDecisionOut) -> Text:
    """Return the term with the largest lead over the next best endpoint's."""
    if decision.lacking is not None:
        return Text(f"nobody for stage {clean(decision.lacking)}", "red")
    if not decision.picked:
        return Text(f"{decision.dropped} dropped by filters", "red")
    if decision.rival is None:
        return Text("the only one", "dim")
    if decision.tie:
        return Text(f"chance, beside {clean(decision.rival.name)}", "dim")
    theirs = {term.name: term.product for term in decision.rival.terms}
    ahead = {term.name: term.product - theirs.get(term.name, 0.0) for term in decision.terms}
    if not ahead:
        return Text(f"over {clean(decision.rival.name)}", "dim")
    name, by = max(ahead.items(), key=lambda each: each[1])
    return Text(f"{clean(name.removesuffix('-scorer'))} {by:+.2f} over {clean(decision.rival.name)}")


def _table() -> Table:
    return Table(box=None, pad_edge=False, expand=True, header_style="bold")


def _bar(part: float) -> str:
    eighths = round(min(1.0, max(0.0, part)) * BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    return (EIGHTHS[7] * full + (EIGHTHS[rest] if rest else "")).ljust(BAR_CELLS)


def _heat(part: float) -> str:
    return "red" if part >= HOT else "yellow" if part >= WARM else ""


def _short(count: float) -> str:
    """Return at most five characters: `812`, `1.6k`, `31k`, `4.1M`."""
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.0f}{unit}" if count >= 100 or not unit else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T"


def _rate(rate: float) -> str:
    return _short(rate) if rate >= 10 or not rate else f"{rate:.1f}"
