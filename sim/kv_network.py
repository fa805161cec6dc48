"""The network between servers: transfers of KV state share the links on their way.

Each server has a network card that sends and receives at the same time. Servers of two zones also share one link per
direction between the zones. A transfer proceeds at the smallest of its equal shares of the links on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

_Link = tuple[str, str]
"""What the link is, and whose: of a server, or of two zones."""

_ZONES = "zones"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """Bandwidths and latency.

    Attributes:
        server_bytes_per_s: of each server's network card, per direction.
        zone_bytes_per_s: of all transfers from one zone to another together; infinite for a network without zones.
        latency_s: from the last byte sent until the receiver can use it; includes the set-up of the transfer.
    """

    server_bytes_per_s: float = inf
    zone_bytes_per_s: float = inf
    latency_s: float = 0.0


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer on the network.

    Attributes:
        links: on its way.
        left_bytes: not sent yet.
        done_at: when its last byte arrives; None while it is sent.
    """

    links: tuple[_Link, ...]
    left_bytes: float
    done_at: float | None = None


class KvNetwork:
    """The transfers in progress. The caller advances the time.

    Args:
        spec: bandwidths and latency.
        zones: server -> its zone; servers without one share the zone "".
    """

    def __init__(self, spec: NetworkSpec, zones: Mapping[str, str]) -> None:
        self._spec, self._zones = spec, zones
        self._now = 0.0
        self._sending: list[Flow] = []
        self._arriving: list[Flow] = []
        self._shares = Counter[_Link]()

    def begin(self, source: str, target: str, n_bytes: float, *, now: float) -> Flow:
        """Begin a transfer from one server to another."""
        self._send_until(now)
        links = [("out", source), ("in", target)]
        zones = self._zones.get(source, ""), self._zones.get(target, "")
        if zones[0] != zones[1]:
            links.append((_ZONES, " to ".join(zones)))
        flow = Flow(tuple(links), n_bytes)
        self._sending.append(flow)
        self._shares.update(flow.links)
        return flow

    def next_at(self) -> float:
        """Return when the next transfer is complete, or sent, if no other begins; infinite if there is none."""
        ends = [self._now + self._seconds(flow) for flow in self._sending]
        return min([*ends, *(_done_at(flow) for flow in self._arriving)], default=inf)

    def advance(self, now: float) -> list[Flow]:
        """Continue until `now`, and return the completed transfers, first the one that completed first.

        Cost: O(transfers) per completed one.
        """
        self._send_until(now)
        done = sorted((flow for flow in self._arriving if _done_at(flow) <= now), key=_done_at)
        self._arriving = [flow for flow in self._arriving if _done_at(flow) > now]
        return done

    def _send_until(self, now: float) -> None:
        while self._sending:
            seconds = [self._seconds(flow) for flow in self._sending]
            nearest_s = min(seconds)
            ends_at = self._now + nearest_s
            self._send(nearest_s if ends_at <= now else max(0.0, now - self._now), seconds)
            if ends_at > now:
                break
            self._now = ends_at
            self._end(
                [flow for flow, flow_s in zip(self._sending, seconds, strict=True) if flow_s <= nearest_s]
            )
        self._now = max(now, self._now)

    def _send(self, seconds: float, needed_s: list[float]) -> None:
        for flow, flow_s in zip(self._sending, needed_s, strict=True):
            flow.left_bytes *= 1.0 - seconds / flow_s if flow_s else 0.0

    def _end(self, sent: list[Flow]) -> None:
        for flow in sent:
            flow.done_at = self._now + self._spec.latency_s
            self._shares.subtract(flow.links)
        self._sending = [flow for flow in self._sending if flow.done_at is None]
        self._arriving += sent

    def _seconds(self, flow: Flow) -> float:
        """Return how long the rest of a transfer takes at the present rate."""
        return max(flow.left_bytes * self._shares[link] / self._bandwidth(link) for link in flow.links)

    def _bandwidth(self, link: _Link) -> float:
        return self._spec.zone_bytes_per_s if link[0] == _ZONES else self._spec.server_bytes_per_s


def _done_at(flow: Flow) -> float:
    return inf if flow.done_at is None else flow.done_at
