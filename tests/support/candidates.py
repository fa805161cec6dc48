"""Candidates, matches and requests for tests of scoring, written by hand and as hypothesis strategies."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kvatlas.indexer.match import PrefixMatch, RankMatch, leading_blocks
from kvatlas.scorers.core.model import Adapters, Candidate, InFlightLoad, Load, RequestView
from support.matches import prefix_match

TIERS = ("gpu", "cpu", "storage")
BLOCK_SIZE = 16


def match_of(*masks: int, n_blocks: int, block_size: int = BLOCK_SIZE) -> PrefixMatch:
    """Return a match in which tier t of `TIERS` holds the blocks whose bits are set in `masks[t]`.

    The usable prefix is the union prefix; tests of scoring do not need the engine's reuse rule.
    """
    tiers = [*masks, *[0] * (len(TIERS) - len(masks))]
    runs: list[tuple[int, int]] = []
    for block in range(n_blocks):
        fastest = next((tier for tier, mask in enumerate(tiers) if mask >> block & 1), None)
        if fastest is None:
            break
        if runs and runs[-1][0] == fastest:
            runs[-1] = (fastest, runs[-1][1] + 1)
        else:
            runs.append((fastest, 1))
    held = RankMatch.from_runs(tuple(map(leading_blocks, tiers)), runs, sum(n for _, n in runs))
    return PrefixMatch(TIERS, block_size, n_blocks, held)


def held(*, gpu: int = 0, cpu: int = 0, storage: int = 0, n_blocks: int = 10) -> PrefixMatch:
    """Return a match in which each tier holds the given number of leading blocks."""
    return prefix_match(
        {"gpu": gpu, "cpu": cpu, "storage": storage}, n_blocks=n_blocks, block_size=BLOCK_SIZE
    )


def load(
    *,
    waiting: int = 0,
    running: int = 0,
    kv: float = 0.0,
    adapters: Adapters | None = None,
    gpu_tokens: int = 0,
    gpu_cached_tokens: int = 0,
) -> Load:
    return Load(
        waiting,
        running,
        kv,
        updated_at=0.0,
        adapters=adapters,
        gpu_tokens=gpu_tokens,
        gpu_cached_tokens=gpu_cached_tokens,
    )


def endpoint(
    name: str = "e",
    *,
    of: Load | None = None,
    prefix: PrefixMatch | None = None,
    credit: float = 1.0,
    in_flight: tuple[int, int] = (0, 0),
    labels: dict[str, str] | None = None,
    attributes: dict[str, float] | None = None,
) -> Candidate:
    """Return a candidate; `in_flight` is (requests, tokens)."""
    return Candidate(
        name=name,
        address=f"{name}:8000",
        labels=labels or {},
        load=of,
        prefix=prefix,
        credit=credit,
        in_flight=InFlightLoad(*in_flight),
        attributes=attributes or {},
    )


def no_chance() -> float:
    """Return 0.0, a draw that never changes the order."""
    return 0.0


ADAPTERS = st.builds(
    Adapters,
    active=st.frozensets(st.sampled_from(("m", "other", "third"))),
    waiting=st.frozensets(st.sampled_from(("m", "other", "third"))),
    recent=st.frozensets(st.sampled_from(("m", "other", "third"))),
)
LOADS = st.builds(
    Load,
    waiting=st.integers(0, 10**6),
    running=st.integers(0, 10**6),
    kv_utilization=st.floats(0, 1),
    updated_at=st.floats(0, 1000),
    adapters=st.none() | ADAPTERS,
)
IN_FLIGHT = st.builds(InFlightLoad, requests=st.integers(0, 10**4), tokens=st.integers(0, 10**9))
ATTRIBUTES: st.SearchStrategy[dict[str, float]] = st.dictionaries(
    st.sampled_from(("temp", "power")), st.floats(-(10**12), 10**12)
)
LABELS: st.SearchStrategy[dict[str, str]] = st.dictionaries(
    st.sampled_from(("zone", "llm-d.ai/role", "llm-d.ai/context-length-range")),
    st.sampled_from(("a", "decode", "prefill", "0-2048", "2048-8192", "9-1", "", "7-7")),
)


@st.composite
def matches(draw: st.DrawFn) -> PrefixMatch:
    n_blocks = draw(st.integers(0, 40))
    masks: Sequence[int] = [draw(st.integers(0, (1 << n_blocks) - 1)) for _ in TIERS]
    return match_of(*masks, n_blocks=n_blocks, block_size=draw(st.sampled_from((1, 16, 64))))


@st.composite
def fleets(draw: st.DrawFn, *, min_size: int = 0) -> list[Candidate]:
    return [
        Candidate(
            name=f"e{number}",
            address=f"10.0.0.{number}:8000",
            labels=draw(LABELS),
            load=draw(st.none() | LOADS),
            prefix=draw(st.none() | matches()),
            credit=draw(st.floats(0, 1)),
            in_flight=draw(IN_FLIGHT),
            attributes=draw(ATTRIBUTES),
        )
        for number in range(draw(st.integers(min_size, 5)))
    ]


HEADERS: st.SearchStrategy[dict[str, str]] = st.dictionaries(
    st.sampled_from(("x-session-token", "x-session-id", "x-zone", "test-epp-endpoint-selection")),
    st.sampled_from(
        ("ZGVmYXVsdC9lMA==", "ZGVmYXVsdC9lNw==", "not base64", "s1", "s2", "", "a", "10.0.0.1,10.0.0.2:8000")
    ),
)
REQUESTS = st.builds(
    RequestView,
    model=st.sampled_from(("m", "unknown")),
    now=st.floats(0, 1000),
    n_tokens=st.integers(0, 10**6),
    headers=HEADERS,
    peer_labels=st.none() | LABELS,
)
