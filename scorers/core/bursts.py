"""Assignment of requests that arrive together: those with equal prompts go to one endpoint, and groups are spread."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...indexer.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True)
class BurstRules:
    """Rules of the assignment.

    Attributes:
        most_per_endpoint: requests with equal prompts on one endpoint, None for no limit.
        min_shared_blocks: leading blocks that different prompts must share to attract each other; 0: they do not.
        by_tokens: whether endpoints are balanced by blocks of prompts instead of requests.
    """

    most_per_endpoint: int | None = None
    min_shared_blocks: int = 0
    by_tokens: bool = False


class Place(NamedTuple):
    """An endpoint that can take requests, and the requests that it runs."""

    name: str
    running: int


@dataclass(slots=True)
class _Batch:
    """What is known while groups are placed one after the other."""

    places: Sequence[Place]
    rules: BurstRules
    fair_share: int
    load: Counter[str] = field(default_factory=Counter[str])
    prompts: PrefixTree[str] = field(default_factory=PrefixTree[str])
    """Prompts by the endpoint that they go to."""

    def least_loaded(self, own: Counter[str]) -> str:
        """Return the endpoint with the least load, among those with room for this group if any has."""
        most = self.rules.most_per_endpoint
        free = [each for each in self.places if most is None or own[each.name] < most]
        return min(free or self.places, key=self._rank).name

    def sharing(self, keys: array[int]) -> str | None:
        """Return the endpoint below its fair share that holds the longest prefix in this batch, None if none holds enough."""
        held = self._held(keys)
        fitting = [
            each
            for each in self.places
            if held.get(each.name, 0) >= self.rules.min_shared_blocks
            and self.load[each.name] < self.fair_share
        ]
        return min(fitting, key=lambda each: (-held[each.name], self._rank(each))).name if fitting else None

    def hold(self, keys: array[int], name: str) -> None:
        """Record the blocks of a prompt that goes to an endpoint."""
        if self.rules.min_shared_blocks:
            self.prompts.enter(name, keys)

    def _held(self, keys: array[int]) -> dict[str, int]:
        held: dict[str, int] = {}
        for node, n_blocks in self.prompts.along(keys):
            held.update(dict.fromkeys(node.counts, n_blocks))
        return held

    def _rank(self, place: Place) -> tuple[int, int, str]:
        return self.load[place.name], place.running, place.name


def assigned(prompts: Sequence[array[int]], places: Sequence[Place], rules: BurstRules) -> list[str | None]:
    """Return an endpoint for each request of a burst, None for those that share nothing with others.

    Groups of equal prompts are placed first, the longest first, each on the endpoint with the least of this burst; then
    single requests that share enough blocks with others. Ties go to fewer running requests, then to the first name.

    Args:
        prompts: chained block keys by request; a prompt without keys is never assigned.
        places: endpoints.
        rules: see `BurstRules`.
    Cost: O(blocks + groups * endpoints).
    Source: the rules are those of the reference's burst producer.
    """
    found: list[str | None] = [None] * len(prompts)
    groups: dict[bytes, list[int]] = {}
    for number, keys in enumerate(prompts):
        if keys:
            groups.setdefault(keys.tobytes(), []).append(number)
    units = _units(list(groups.values()), prompts, rules.min_shared_blocks)
    if not units or not places:
        return found
    total = sum(len(unit) * (len(prompts[unit[0]]) if rules.by_tokens else 1) for unit in units)
    batch = _Batch(places, rules, fair_share=-(-total // len(places)))
    for unit in units:
        _place(batch, unit, prompts[unit[0]], found)
    return found


def _units(groups: list[list[int]], prompts: Sequence[array[int]], min_shared: int) -> list[list[int]]:
    """Return the groups to place, in order."""

    def longest_first(units: Iterable[list[int]]) -> list[list[int]]:
        return sorted(units, key=lambda unit: -len(prompts[unit[0]]))

    units = longest_first(unit for unit in groups if len(unit) > 1)
    if min_shared:
        heads: Counter[bytes] = Counter()
        for unit in groups:
            heads[prompts[unit[0]][:min_shared].tobytes()] += len(unit)
        units += longest_first(
            unit
            for unit in groups
            if len(unit) == 1
            and len(prompts[unit[0]]) >= min_shared
            and heads[prompts[unit[0]][:min_shared].tobytes()] > 1
        )
    return units


def _place(batch: _Batch, unit: Sequence[int], keys: array[int], found: list[str | None]) -> None:
    own: Counter[str] = Counter()
    left, most = list(unit), batch.rules.most_per_endpoint
    name = batch.sharing(keys) if batch.rules.min_shared_blocks else None
    while left:
        name = name or batch.least_loaded(own)
        n_requests = len(left) if most is None else min(len(left), max(1, most - own[name]))
        for number in left[:n_requests]:
            found[number] = name
        del left[:n_requests]
        own[name] += n_requests
        batch.load[name] += n_requests * (len(keys) if batch.rules.by_tokens else 1)
        name = None
    for each in own:
        batch.hold(keys, each)
