"""Links between endpoints: how fast KV state is transferred, learned per pair of labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ..core.candidates import LabelColumn
from ..core.columns import FloatArray
from ..core.shared import Contribution, SharedSums
from .fit import NOISE_SHARE

Link = tuple[str | None, str | None]
"""Label of the endpoint that sends and of the one that receives; None for an endpoint without it."""

MAX_LINKS = 1024
"""Most links with a speed of their own; all further links keep the configured one. A link without endpoints gives way to one with some."""

SPREAD = 1.0
"""Standard deviation of the logarithm of a link's speed relative to the configured one, before anything is learned."""

DRIFT = 3e-4
"""Growth of the variance of that logarithm per observation, so that a link which changes is followed."""

COMMON_SPREAD = 0.15
"""Standard deviation of an error that all times have in common, relative to the whole: it is not the links'. The costs of
prompts are measured or learned, and known much better than the network is before its first transfers."""

PUBLISH_S = 1.0
"""Least time between two publications."""

MOST = 1e12
"""Largest number of a sibling that is believed; precisions and observations are far below."""

_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Link).decode

MOST_SURPRISE = 3.0
"""Standard deviations of an error from which a link learns in full. The first transfer between two endpoints may wait for seconds until
they are connected, which is not its speed: the weight of larger errors falls with their square, so that a single one says little."""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What is known of one link.

    Attributes:
        link: its labels.
        tokens_per_second: tokens of which the KV state is transferred per second.
        error: standard deviation of its logarithm, which is about the relative error.
        n_observations: transfers that it was learned from.
    """

    link: Link
    tokens_per_second: float
    error: float
    n_observations: int


@dataclass(slots=True)
class _Factor:
    """Logarithm of a factor, its variance, and the observations behind it."""

    spread: float
    log: float = 0.0
    variance: float = 0.0
    n: int = 0

    def __post_init__(self) -> None:
        self.variance = self.spread**2

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Return the observations without the configured speed: weighted logarithm, weight, and their number.

        The weight is the precision beyond that of the configured speed, so that weights of several processes add up.
        """
        weight = max(0.0, 1.0 / self.variance - 1.0 / self.spread**2)
        return self.log / self.variance, weight, float(self.n)

    def move(self, gain: float, surprise_ms: float, part_ms: float) -> None:
        """Learn from an error of a time, `gain` of it, of which the factor has the part `part_ms`."""
        self.log += gain * surprise_ms
        self.variance = min(self.variance * (1.0 - gain * part_ms) + DRIFT, self.spread**2)
        self.n += 1


class Links:
    """Milliseconds per token of transfers, for each pair of labels.

    Of a time to first token only a part is the transfer. So each is an observation with noise of a quarter of the whole, and
    a link's speed is the best estimate from these and the configured speed (a Kalman filter of its logarithm). Short
    transfers say little, and change little. An error that all links have in common is estimated beside them, and left to
    the costs of everything else.

    Args:
        ms_per_token: the configured speed.
        most: largest factor between a link's speed and the configured one, in both directions.

    Attributes:
        shared: what this process learned of each link. What siblings learned is added by precision; each of them learns as if it
            were alone, so that nothing counts twice.
    """

    def __init__(self, ms_per_token: float, *, most: float = 20.0) -> None:
        self._prior, self._most = ms_per_token, math.log(most)
        self._speeds: dict[Link, _Factor] = {}
        self._theirs: dict[Link, tuple[float, float, float]] = {}
        """Sums of `_Factor.numbers` over the siblings."""
        self.shared = SharedSums(
            self._own, self._add_up, lambda: tuple(map(_text, self._speeds)), interval_s=PUBLISH_S
        )
        self._common = _Factor(COMMON_SPREAD)
        self._used: tuple[str | None, ...] = ()
        """Labels that endpoints have, as far as that is known."""
        self._all_used: tuple[str | None, ...] | None = None
        """Labels beside which no link was without endpoints."""
        self._values: tuple[str | None, ...] = ()
        self._places: dict[str | None, int] = {}
        self._table: FloatArray = np.empty((0, 0))

    def follow(self, labels: tuple[str | None, ...]) -> None:
        """Note which labels the endpoints of the fleet have. Cost: O(1)."""
        self._used = labels

    def ms_per_token(self, link: Link) -> float:
        """Return the milliseconds per token of one link."""
        found = self._speeds.get(link)
        if link in self._theirs:
            return self._prior * math.exp(self._together(link).log)
        return self._prior * math.exp(found.log) if found is not None else self._prior

    def between(self, senders: LabelColumn, receivers: LabelColumn) -> FloatArray:
        """Return the milliseconds per token from each sender to each receiver, shape (senders, receivers) or (1, 1).

        Args:
            senders: labels of one directory.
            receivers: labels of the same directory.
        Cost: one operation; after a change of the fleet O(labels ** 2) more.
        """
        if senders.values is not self._values:
            self._follow(senders.values)
        if len(self._values) == 1:
            return self._table
        found: FloatArray = self._table[senders.codes[:, np.newaxis], receivers.codes]
        return found

    def learn(self, link: Link, *, transfer_ms: float, observed_ms: float, expected_ms: float) -> None:
        """Learn from an observed time to first token.

        Args:
            link: that the transfer took.
            transfer_ms: expected time of what depends on its speed.
            observed_ms: time to first token.
            expected_ms: the expected one, of which `transfer_ms` is a part.
        Cost: O(1).
        """
        if not transfer_ms > 0.0:
            return
        speed = self._speeds.get(link)
        if speed is None:
            if len(self._speeds) >= MAX_LINKS and not self._give_way(link):
                return
            speed = self._speeds[link] = _Factor(SPREAD)
        if link in self._theirs:  # learn from the error of the own estimate
            alone_ms = transfer_ms * math.exp(speed.log - self._together(link).log)
            expected_ms, transfer_ms = expected_ms - transfer_ms + alone_ms, alone_ms
        common, whole_ms = self._common, expected_ms * math.exp(self._common.log)
        of_link, of_all = speed.variance * transfer_ms, common.variance * whole_ms
        total = (NOISE_SHARE * expected_ms) ** 2 + of_link * transfer_ms + of_all * whole_ms
        surprise_ms = observed_ms - whole_ms
        weight = min(1.0, MOST_SURPRISE**2 * total / surprise_ms**2) if surprise_ms else 1.0
        speed.move(weight * of_link / total, surprise_ms, transfer_ms)
        common.move(weight * of_all / total, surprise_ms, whole_ms)
        speed.log = min(max(speed.log, -self._most), self._most)
        common.log = min(max(common.log, -self._most), self._most)
        self._show(link)
        if self.shared.on_change is not None:
            self.shared.note(_text(link))

    def reports(self) -> list[LinkReport]:
        """Return what is known of each link seen so far, in order of appearance."""
        return [
            LinkReport(link, 1000.0 / self.ms_per_token(link), math.sqrt(each.variance), each.n)
            for link in dict.fromkeys((*self._speeds, *self._theirs))
            for each in (self._together(link),)
        ]

    def _follow(self, values: tuple[str | None, ...]) -> None:
        self._values = values
        self._places = {value: place for place, value in enumerate(values)}
        self._table = np.full((len(values), len(values)), self._prior)
        for link in dict.fromkeys((*self._speeds, *self._theirs)):
            self._show(link)

    def _give_way(self, link: Link) -> bool:
        """Forget the first link that no endpoints have, if endpoints have this one; return whether there was one.

        Cost: O(links), O(1) while the labels stay and all are in use.
        """
        if self._used is self._all_used:
            return False
        used = frozenset(self._used)
        if not used.issuperset(link):
            return False
        unused = next((each for each in self._speeds if not used.issuperset(each)), None)
        if unused is None:
            self._all_used = self._used
            return False
        del self._speeds[unused]
        self.shared.note(_text(unused))
        return True

    def _show(self, link: Link) -> None:
        """Write the speed of a link to the table."""
        places = self._places
        if link[0] in places and link[1] in places:
            self._table[places[link[0]], places[link[1]]] = self.ms_per_token(link)

    def _together(self, link: Link) -> _Factor:
        """Return the speed of a link by the observations of this process and its siblings."""
        own = self._speeds.get(link)
        theirs = self._theirs.get(link)
        if own is not None and theirs is None:
            return own
        mine = own.numbers if own is not None else (0.0, 0.0, 0.0)
        weighted, weight, n = map(sum, zip(mine, theirs or (), strict=True))
        found = _Factor(SPREAD)
        found.variance = 1.0 / (weight + 1.0 / SPREAD**2)
        found.log = min(max(weighted * found.variance, -self._most), self._most)
        found.n = round(n)
        return found

    def _own(self, text: str, now: float) -> tuple[float, float, float] | None:  # noqa: ARG002 - nothing ages
        found = self._speeds.get(_DECODE(text))
        return found.numbers if found is not None else None

    def _add_up(self, text: str, contributions: Sequence[Contribution]) -> None:
        try:
            link = _DECODE(text)
        except (msgspec.DecodeError, UnicodeDecodeError):  # malformed
            return
        known = [each.numbers for each in contributions if len(each.numbers) == 3]
        known = [
            each
            for each in known
            if abs(each[0]) <= MOST and 0.0 <= each[1] <= MOST and 0.0 <= each[2] <= MOST
        ]
        if known and (link in self._theirs or len(self._theirs) < MAX_LINKS):
            self._theirs[link] = (
                sum(numbers[0] for numbers in known),
                sum(numbers[1] for numbers in known),
                sum(numbers[2] for numbers in known),
            )
        elif not known:
            self._theirs.pop(link, None)
        self._show(link)


def _text(link: Link) -> str:
    return _ENCODE(link).decode()
