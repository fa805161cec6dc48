"""Links between endpoints: how fast KV state is transferred, learned per pair of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..core.candidates import LabelColumn
from ..core.columns import FloatArray
from .fit import NOISE_SHARE

Link = tuple[str | None, str | None]
"""Label of the endpoint that sends and of the one that receives; None for an endpoint without it."""

MAX_LINKS = 1024
"""Most links with a speed of their own; all further links keep the configured one."""

SPREAD = 1.0
"""Standard deviation of the logarithm of a link's speed relative to the configured one, before anything is learned."""

DRIFT = 3e-4
"""Growth of the variance of that logarithm per observation, so that a link which changes is followed."""

COMMON_SPREAD = 0.15
"""Standard deviation of an error that all times have in common, relative to the whole: it is not the links'. The costs of
prompts are measured or learned, and known much better than the network is before its first transfers."""

MOST_SURPRISE = 3.0
"""Standard deviations of an error from which a link learns; a stall is not a speed."""


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
    """

    def __init__(self, ms_per_token: float, *, most: float = 20.0) -> None:
        self._prior, self._most = ms_per_token, math.log(most)
        self._speeds: dict[Link, _Factor] = {}
        self._common = _Factor(COMMON_SPREAD)
        self._values: tuple[str | None, ...] = ()
        self._places: dict[str | None, int] = {}
        self._table: FloatArray = np.empty((0, 0))

    def ms_per_token(self, link: Link) -> float:
        """Return the milliseconds per token of one link."""
        found = self._speeds.get(link)
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
            if len(self._speeds) >= MAX_LINKS:
                return
            speed = self._speeds[link] = _Factor(SPREAD)
        common, whole_ms = self._common, expected_ms * math.exp(self._common.log)
        of_link, of_all = speed.variance * transfer_ms, common.variance * whole_ms
        total = (NOISE_SHARE * expected_ms) ** 2 + of_link * transfer_ms + of_all * whole_ms
        most = MOST_SURPRISE * math.sqrt(total)
        surprise_ms = min(max(observed_ms - whole_ms, -most), most)
        speed.move(of_link / total, surprise_ms, transfer_ms)
        common.move(of_all / total, surprise_ms, whole_ms)
        speed.log = min(max(speed.log, -self._most), self._most)
        common.log = min(max(common.log, -self._most), self._most)
        places = self._places
        if link[0] in places and link[1] in places:
            self._table[places[link[0]], places[link[1]]] = self.ms_per_token(link)

    def reports(self) -> list[LinkReport]:
        """Return what is known of each link seen so far, in order of appearance."""
        return [
            LinkReport(link, 1000.0 / self.ms_per_token(link), math.sqrt(each.variance), each.n)
            for link, each in self._speeds.items()
        ]

    def _follow(self, values: tuple[str | None, ...]) -> None:
        self._values = values
        self._places = {value: place for place, value in enumerate(values)}
        self._table = np.full((len(values), len(values)), self._prior)
        for link in self._speeds:
            if link[0] in self._places and link[1] in self._places:
                self._table[self._places[link[0]], self._places[link[1]]] = self.ms_per_token(link)
