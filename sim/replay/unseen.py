"""The part of each prompt that no cache can hold when the request arrives, whatever was routed where before."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..traces.content import block_hashes
from ..traces.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a request's arrival before anything is served.

    Attributes:
        earliest_at: it cannot arrive before.
        is_fixed: whether it arrives then, however others are served.
    """

    earliest_at: float
    is_fixed: bool


def cachable_tokens(trace: Trace, arrivals: Sequence[Arrival], *, block_size: int) -> list[int]:
    """Count the leading prompt tokens of each request that others can have computed before it arrives.

    A block can be cached when request j arrives only if a request that contains it can arrive before j. That excludes

    - if the arrival of j is fixed: requests that cannot arrive before it, and later numbers at the same time;
    - otherwise, with constant concurrency and no request that waits for a certain other one: later numbers;
    - otherwise: j, and requests that wait for j.

    All other blocks count as cached on every server. So the remaining tokens of j are computed between its arrival and its
    first token under every policy, on servers with any caches, even one that all share: if only j and excluded requests
    contain a block, then it is computed after j arrived, by j or by one of those.

    Args:
        trace: requests.
        arrivals: of each request.
        block_size: tokens per block of the engines.
    Cost: O(blocks).
    """
    spans, order = _descendants(trace.requests), _order(arrivals)
    in_order = trace.concurrency is not None and all(each.after is None for each in trace.requests)
    hashes = [
        block_hashes(request, number, id_tokens=trace.block_size, block_size=block_size)
        for number, request in enumerate(trace.requests)
    ]
    low, high, earliest = dict[int, int](), dict[int, int](), dict[int, int]()
    for number, keys in enumerate(hashes):
        span, place = spans[number][0], order[number]
        for key in keys:
            low[key], high[key] = min(low.get(key, span), span), max(high.get(key, span), span)
            earliest[key] = min(earliest.get(key, place), place)
    found: list[int] = []
    for number, request in enumerate(trace.requests):
        keys = hashes[number][: request.n_prompt // block_size]
        if arrivals[number].is_fixed or in_order:
            n_blocks = _arriving_before(keys, earliest, order[number])
        else:
            n_blocks = _outside(keys, low, high, spans[number])
        found.append(n_blocks * block_size)
    return found


def _arriving_before(keys: Sequence[int], earliest: Mapping[int, int], place: int) -> int:
    """Count the leading blocks with a request whose place by arrival is before `place`."""
    return bisect_left(keys, True, key=lambda key: earliest[key] >= place)


def _outside(
    keys: Sequence[int], low: Mapping[int, int], high: Mapping[int, int], span: tuple[int, int]
) -> int:
    """Count the leading blocks with a request outside a range."""
    return bisect_left(keys, True, key=lambda key: span[0] <= low[key] and high[key] <= span[1])


def _order(arrivals: Sequence[Arrival]) -> list[int]:
    """Return the place of each request by earliest arrival, then number."""
    places = [0] * len(arrivals)
    for place, number in enumerate(sorted(range(len(arrivals)), key=lambda each: arrivals[each].earliest_at)):
        places[number] = place
    return places


def _descendants(requests: Sequence[TraceRequest]) -> list[tuple[int, int]]:
    """Number the requests so that each one and those that wait for it, directly or not, are a range; return the ranges."""
    followers: list[list[int]] = [[] for _ in requests]
    for number, request in enumerate(requests):
        if request.after is not None:
            followers[request.after].append(number)
    size = [1] * len(requests)
    for number in range(len(requests) - 1, -1, -1):
        size[number] += sum(size[each] for each in followers[number])
    first, free = [0] * len(requests), 0
    for number, request in enumerate(requests):
        if request.after is None:
            first[number], free = free, free + size[number]
        place = first[number] + 1
        for each in followers[number]:
            first[each], place = place, place + size[each]
    return [(begin, begin + n - 1) for begin, n in zip(first, size, strict=True)]
