"""What other processes that decide on the same endpoints know of the capacities of tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..indexer.capacity import ObservedCapacity
from ..indexer.holders import MAX_TIER_BLOCKS
from ..indexer.learned_bound import LearnedBound
from ..indexer.tiers import TierId, TierTable
from ..scorers.core.shared import Contribution, SharedSums
from .endpoint import Endpoint
from .rank import Rank

_NOTHING = (0, 0, 0, 0.0)
"""Lesson of a bound that has learned nothing; unlike none it does not look like that of a process that is gone."""


class SharedBounds:
    """Bounds that the audit teaches, and capacities that evictions show, by endpoint, rank and tier.

    Bounds are learned together: an audited request moves the bound of all. Evictions are heard by all alike; what they have
    shown to others counts until this process has seen enough of them itself.

    Args:
        endpoints: of the fleet, always the same mapping.
        tiers: tiers.

    Attributes:
        lessons: bounds that the audit teaches.
        sightings: capacities that evictions show. Changes are not published; a process that starts asks for all.
        sums: both, by name.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], tiers: TierTable) -> None:
        self._endpoints = endpoints
        self._tiers = {spec.name: TierId(number) for number, spec in enumerate(tiers.specs)}
        self._taught: set[str] = set()
        """Keys of the bounds that this process has published."""
        self._begun_anew: set[str] = set()
        """Keys of those of which it has learned nothing since the rank was reset."""
        self._others: dict[str, Sequence[Contribution]] = {}
        """Lessons of the others by key."""
        self._seen: dict[str, Sequence[Contribution]] = {}
        """Sightings of the others by key."""
        self.lessons = SharedSums(self._lesson, self._take_lessons, lambda: tuple(self._taught))
        self.sightings = SharedSums(self._sighting, self._take_sightings, self._sighted)
        self.sums: Mapping[str, SharedSums] = {"bounds": self.lessons, "capacities": self.sightings}

    def learned(self, rank: Rank, tier: str) -> LearnedBound | None:
        """Return the bound of an inferred tier as all have learned it, None if nobody has."""
        number = self._tiers[tier]
        if (found := rank.learned.get(number)) is not None:
            return found
        others = _since_reset(rank, self._others.get(_key(rank, tier), ())) if self._others else ()
        return self.begun(rank, tier) if others else None

    def begun(self, rank: Rank, tier: str) -> LearnedBound:
        """Return the bound of an inferred tier to learn; it goes on from what the others have learned."""
        number = self._tiers[tier]
        if (found := rank.learned.get(number)) is None:
            found = rank.learned[number] = LearnedBound(highest=MAX_TIER_BLOCKS)
            found.add_up(_since_reset(rank, self._others.get(_key(rank, tier), ())))
        return found

    def taught(self, rank: Rank, tier: str) -> None:
        """Note that the bound of a tier has learned from a request."""
        self._publish(_key(rank, tier))

    def follow(self, rank: Rank) -> None:
        """Take what was told before the rank was there, and withdraw what was learned before its reset. Cost: O(tiers)."""
        if not self._seen and not self._taught:
            return
        for tier, number in self._tiers.items():
            key = _key(rank, tier)
            if key in self._seen:
                self._see(rank, number, self._seen[key])
            if key in self._taught and key not in self._begun_anew and number not in rank.learned:
                self._begun_anew.add(key)
                self.lessons.note(key)

    def forget(self, endpoint: Endpoint) -> None:
        """Withdraw what was learned of an endpoint that is removed."""
        for rank in endpoint.ranks:
            for key in self._taught & {_key(rank, tier) for tier in self._tiers}:
                self._taught.discard(key)
                self._begun_anew.discard(key)
                self.lessons.note(key)

    def _publish(self, key: str) -> None:
        self._taught.add(key)
        self._begun_anew.discard(key)
        self.lessons.note(key)

    def _place(self, key: str) -> tuple[Rank, TierId] | None:
        """Return the rank and the tier that a key names, None if they are not here."""
        endpoint, _, place = key.partition("\n")
        number, _, tier = place.partition("\n")
        for rank in self._endpoints[endpoint].ranks if endpoint in self._endpoints else ():
            if str(rank.number) == number and tier in self._tiers:
                return rank, self._tiers[tier]
        return None

    def _lesson(self, key: str, _: float) -> Sequence[float] | None:
        if key in self._begun_anew:
            return _NOTHING
        place = self._place(key) if key in self._taught else None
        found = place[0].learned.get(place[1]) if place is not None else None
        return found.lesson if found is not None else None

    def _take_lessons(self, key: str, others: Sequence[Contribution]) -> None:
        is_one_gone = len(others) < len(self._others.get(key, ()))
        _keep(self._others, key, others)
        if (place := self._place(key)) is not None:
            rank, tier = place
            if (found := rank.learned.get(tier)) is not None:
                found.add_up(_since_reset(rank, others))
                if is_one_gone:  # what it taught may have reached this process alone
                    self._publish(key)

    def _sighted(self) -> Sequence[str]:
        return [
            _key(rank, tier)
            for endpoint in self._endpoints.values()
            for rank in endpoint.ranks
            for tier, number in self._tiers.items()
            if number in rank.gauges and rank.gauges[number].observed() is not None
        ]

    def _sighting(self, key: str, _: float) -> Sequence[float] | None:
        place = self._place(key)
        gauge = place[0].gauges.get(place[1]) if place is not None else None
        observed = gauge.observed() if gauge is not None else None
        return (observed.n_blocks, observed.spread, observed.n_samples) if observed is not None else None

    def _take_sightings(self, key: str, others: Sequence[Contribution]) -> None:
        _keep(self._seen, key, others)
        if (place := self._place(key)) is not None:
            self._see(*place, others)

    @staticmethod
    def _see(rank: Rank, tier: TierId, others: Sequence[Contribution]) -> None:
        known = [numbers for numbers in _since_reset(rank, others) if _is_sighting(numbers)]
        if known:
            n_blocks, spread, n_samples = max(known, key=lambda numbers: numbers[2])
            rank.seen_elsewhere[tier] = ObservedCapacity(int(n_blocks), spread, int(n_samples))


def _is_sighting(numbers: Sequence[float]) -> bool:
    return len(numbers) == 3 and 1 <= numbers[0] <= MAX_TIER_BLOCKS and 0 <= numbers[1] <= 1 <= numbers[2]


def _since_reset(rank: Rank, others: Sequence[Contribution]) -> Sequence[Sequence[float]]:
    """Return what others have told since the rank was reset; what came before is of another life of the engine."""
    return [each.numbers for each in others if each.at >= rank.reset_at]


def _keep(kept: dict[str, Sequence[Contribution]], key: str, others: Sequence[Contribution]) -> None:
    if others:
        kept[key] = others
    else:
        kept.pop(key, None)


def _key(rank: Rank, tier: str) -> str:
    return f"{rank.endpoint}\n{rank.number}\n{tier}"
