"""A stream of random decisions that is the same each time: all built-in plugins, many fleets, histories and faults.

`python -m support.decision_stream`, from `tests/`, writes it to the file that `test_recorded_decisions` replays.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvatlas.events.stream import Trust
from kvatlas.indexer.match import PrefixMatch
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.base import Filter, Picker, Scorer
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision, ScoreTerm
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Adapters, Candidate, InFlightLoad, Load, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.prefix_source import TierCredits
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.pickers.random_choice import RandomPicker
from kvatlas.scorers.pickers.weighted_random import WeightedRandomPicker
from support.built import built
from support.candidates import TIERS, match_of
from support.stream_plugins import FaultyFilter, FaultyPicker, FaultyScorer
from support.tree import ROOT

RECORDED = Path(ROOT, "tests", "golden", "decisions", "stream.txt")

N_STREAMS, N_DECISIONS = 40, 40
"""Profiles, and decisions of each."""

SIZES = (1, 2, 3, 5, 8, 8, 13, 20, 33, 64, 120, 300)
"""Endpoints of a fleet."""

CONTEXT = BuildContext(tiers=TIERS, sources={"precise": TierCredits((1.0, 0.8))}, own=None)

SCORERS: Sequence[tuple[str, dict[str, object]]] = (
    ("queue-scorer", {}),
    ("running-requests-size-scorer", {}),
    ("kv-cache-utilization-scorer", {}),
    ("load-aware-scorer", {"threshold": 6}),
    ("active-request-scorer", {}),
    ("active-request-scorer", {"idleThreshold": 2, "maxBusyScore": 0.7}),
    ("token-load-scorer", {"queueThresholdTokens": 9000}),
    ("prefix-cache-scorer", {}),
    ("prefix-cache-scorer", {"tier": "cpu"}),
    (
        "prefix-cache-scorer",
        {
            "prefixMatchInfoProducerName": "precise",
            "matchLengthWeight": 0.3,
            "matchLengthScaleTokens": 200,
        },
    ),
    ("precise-prefix-cache-scorer", {}),
    ("tiered-prefix-cache-scorer", {"credits": {"cpu": 0.7}}),
    ("latency-cost-scorer", {"groupLabel": "zone", "halfLifeObservations": 60}),
    ("latency-cost-scorer", {"scaleMs": 90}),
    ("lora-affinity-scorer", {}),
    ("session-affinity-scorer", {}),
    ("session-affinity-scorer", {"strategy": "session_id", "sessionIdConfig": {"evictionTtlSeconds": 9}}),
    ("no-hit-lru-scorer", {"lruSize": 6}),
    ("context-length-aware", {}),
)

FILTERS: Sequence[tuple[str, dict[str, object]]] = (
    ("decode-filter", {}),
    ("label-selector-filter", {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["c"]}]}),
    ("label-selector-filter", {"matchLabels": {"zone": "a"}}),
    ("context-length-aware", {"enableFiltering": True}),
    ("utilization-filter", {"conditions": [{"metric": "waiting-queue", "maxValue": 5}]}),
    (
        "utilization-filter",
        {
            "conditions": [
                {"metric": "kv-cache-utilization", "maxValue": 0.6},
                {"metric": "active-requests", "maxValue": 4},
                {"metric": "running-requests", "maxValue": 30},
            ],
            "fallbackOnEmpty": True,
        },
    ),
    ("prefix-cache-affinity-filter", {"affinityThreshold": 0.4, "explorationProbability": 0.2}),
    (
        "prefix-cache-affinity-filter",
        {"affinityThreshold": 0.3, "maxTTFTPenaltyMs": 60, "prefixMatchInfoProducerName": "precise"},
    ),
)

LABELS: Sequence[dict[str, str]] = (
    {},
    {"zone": "a"},
    {"zone": "b", "llm-d.ai/role": "decode"},
    {"zone": "c", "llm-d.ai/role": "prefill"},
    {"zone": "a", "llm-d.ai/context-length-range": "0-300"},
    {"llm-d.ai/context-length-range": "200-900"},
    {"llm-d.ai/context-length-range": "9-1"},
)


class _Stream:
    """One profile and its fleet, over a number of requests."""

    def __init__(self, number: int) -> None:
        self._chance = random.Random(f"stream {number}")
        self._fleet: list[Candidate] = []
        self._now = 100.0
        registry = builtin_registry()
        chance = self._chance
        plugins = [*chance.sample(SCORERS, chance.randint(1, 6)), SCORERS[number % len(SCORERS)]]
        scorers: list[tuple[str, Scorer, float]] = [
            (
                f"s{place}",
                built(registry.scorers, name, parameters, CONTEXT),
                chance.choice((1.0, 2.0, 0.3, 1.7)),
            )
            for place, (name, parameters) in enumerate(plugins)
        ]
        filters: list[tuple[str, Filter]] = [
            (f"f{place}", built(registry.filters, name, parameters, CONTEXT))
            for place, (name, parameters) in enumerate(
                [FILTERS[number % len(FILTERS)], *chance.sample(FILTERS, chance.randint(0, 2))]
                if number % 3
                else []
            )
        ]
        picker: Picker = MaxScorePicker(chance.choice((1, 1, 3)))
        match number % 10:
            case 3:
                picker = WeightedRandomPicker(2)
            case 5:
                picker = RandomPicker(2)
            case 7:
                picker = FaultyPicker()
                scorers.append(("faulty", FaultyScorer(), 1.0))
                filters.append(("faulty", FaultyFilter()))
            case _:
                pass
        self._profile = Profile(scorers, picker, filters)

    def lines(self) -> Iterator[str]:
        for _ in range(N_DECISIONS):
            yield self._line()

    def _line(self) -> str:
        chance, profile = self._chance, self._profile
        self._now += chance.random()
        if not self._fleet or chance.random() < 0.2:
            self._fleet = [self._endpoint(f"e{number}") for number in range(chance.choice(SIZES))]
        n_blocks = chance.choice((0, 1, 4, 12, 31))
        view = RequestView(
            model=chance.choice(("m", "lora-1")),
            now=self._now,
            n_tokens=n_blocks * 16 + chance.randrange(16),
            headers={
                "x-session-id": chance.choice(("", "s1", "s2")),
                "x-session-token": chance.choice(("", "ZGVmYXVsdC9lMQ==", "no")),
            },
        )
        has_prefix, busy = chance.random() < 0.8, chance.random() < 0.5
        fleet = [self._now_of(each, n_blocks, has_prefix=has_prefix, busy=busy) for each in self._fleet]
        decision = profile.decide(view, Candidates.of(fleet), rng=chance.random)
        headers: dict[str, str] = {}
        if decision.picked:
            profile.picked(view, decision)
            headers, _ = profile.response_headers(decision)
            if chance.random() < 0.7:
                profile.answered(decision, ttft_s=chance.uniform(0.001, 0.9))
        return line_of(decision, headers)

    def _endpoint(self, name: str) -> Candidate:
        chance = self._chance
        return Candidate(name, f"{name}:8000", chance.choice(LABELS) if chance.random() < 0.5 else {})

    def _now_of(self, endpoint: Candidate, n_blocks: int, *, has_prefix: bool, busy: bool) -> Candidate:
        chance = self._chance
        load = in_flight = None
        if chance.random() < 0.9:
            load = Load(
                chance.randrange(9) if busy else 0,
                chance.randrange(40) if busy else 0,
                chance.choice((0.0, 0.25, chance.random())),
                self._now - chance.choice((0.25, 3.0, -0.5)),
                self._adapters() if chance.random() < 0.5 else None,
            )
        if busy and chance.random() < 0.5:
            in_flight = InFlightLoad(chance.randrange(8), chance.randrange(9000))
        return Candidate(
            endpoint.name,
            endpoint.address,
            endpoint.labels,
            load,
            self._prefix(n_blocks) if has_prefix and chance.random() < 0.95 else None,
            chance.choice((1.0, 1.0, 0.5, chance.random())),
            in_flight or InFlightLoad(),
            chance.choice(list(Trust)),
        )

    def _adapters(self) -> Adapters:
        names, chance = ("m", "lora-1", "lora-2"), self._chance
        some = chance.sample(names, chance.randrange(3))
        waiting, n_recent = chance.sample(names, chance.randrange(2)), chance.randrange(4)
        return Adapters(frozenset(some), frozenset(waiting), recent=frozenset(names[:n_recent]))

    def _prefix(self, n_blocks: int) -> PrefixMatch:
        chance = self._chance
        masks = [
            (1 << chance.randint(0, n_blocks)) - 1
            & ~(chance.choice((0, 0, 1 << chance.randint(0, n_blocks))))
            if chance.random() < 0.4
            else 0
            for _ in TIERS
        ]
        return match_of(*masks, n_blocks=n_blocks, block_size=chance.choice((16, 16, 16, 32)))


def line_of(decision: Decision, headers: dict[str, str]) -> str:
    """Return what was picked, whether by chance, and a digest of every score and text of a decision."""
    digest = hashlib.blake2b(digest_size=6)
    for each in decision.scored:
        digest.update(repr((
            each.candidate.name,
            each.total + 0.0,
            each.dropped and (each.dropped.by, each.dropped.reason),
            [_numbers(term) for term in each.terms],
        )).encode())  # fmt: skip
    digest.update(repr([(fault.name, fault.reason) for fault in decision.faults]).encode())
    digest.update(repr((headers, decision.tied, decision.filters, decision.picker)).encode())
    return f"{','.join(decision.picked) or '-'} {'tie' if decision.tie else 'one'} {digest.hexdigest()}"


def _numbers(term: ScoreTerm) -> tuple[object, ...]:
    rating = term.rating
    raw = None if rating.raw is None else float(rating.raw) + 0.0
    return (
        term.name,
        term.type,
        term.weight,
        None if raw is None or math.isnan(raw) else raw,
        rating.score + 0.0,
        rating.age_s,
    )


def stream(number: int) -> list[str]:
    """Return the decisions of one stream, a line each."""
    return list(_Stream(number).lines())


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for number in range(N_STREAMS) for line in stream(number)))
