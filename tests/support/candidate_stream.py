"""A seeded life of a fleet, and what a request sees of it at every step."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Iterator

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.in_flight import Booking
from kvatlas.fleet.rank import Rank
from kvatlas.fleet.replicas.bookings import Bookings
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.settings import fleet_settings
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.predicted import Prediction
from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.core.model import Adapters, Candidate, InFlightLoad, Load
from support.fleets import NOWHERE, make_config
from support.payloads import payload

CONFIG = make_config(predictions={"enabled": True, "ttl": "5s"})
"""Loads are stale after two seconds, predictions after five."""

BLOCK_SIZES = (4, 4, 4, 8)
MEDIA = ("GPU", "GPU", "CPU", "STORAGE")
ZONES = ("a", "b", "c")
N_TRUNKS, TRUNK_TOKENS = 3, 64


class CandidateStream:
    """Changes a fleet by chance, and returns what requests see of it.

    Args:
        fleet: an empty fleet with the settings of `CONFIG`.
        loads: the table that it reads.
        siblings: its view of another replica, None if it has none.
        seed: of the changes.
        n_endpoints: endpoints that it has at first, and about as many later.
    """

    def __init__(
        self,
        fleet: Fleet,
        loads: LoadTable,
        *,
        seed: int,
        n_endpoints: int,
        siblings: Bookings | None = None,
    ) -> None:
        self.fleet, self.loads = fleet, loads
        self._siblings, self._other = siblings, Bookings()
        self._draw = random.Random(seed)
        self._n_endpoints = n_endpoints
        self._n_added = self._n_batches = 0
        self._now = 1000.0
        self._sizes: dict[str, int] = {}
        self._bookings: list[Booking] = []
        self._predictions: list[Prediction] = []
        self._live: dict[tuple[str, int], int] = {}
        for _ in range(n_endpoints):
            self._add()

    def steps(self, n_steps: int) -> Iterator[str]:
        """Make changes, and yield one line per request: name of the step, candidates, and a hash of all they show."""
        changes = (
            (self._store, 30), (self._remove_blocks, 8), (self._clear, 1), (self._scrape, 25), (self._book, 12),
            (self._end, 8), (self._audit, 5), (self._trust, 8), (self._restart, 1), (self._facts, 3),
            (self._relabel, 2), (self._swap, 2), (self._tick, 4), (self._configure, 1), (self._withdraw, 2),
            (self._sibling, 6),
        )  # fmt: skip
        weights = [weight for _, weight in changes]
        for number in range(n_steps):
            self._now += self._draw.choice((0.0, 0.001, 0.01, 0.3))
            for change, _ in self._draw.choices(changes, weights, k=self._draw.randrange(1, 6)):
                change()
            seen = list(self._candidates())
            digest = hashlib.sha256("\n".join(map(shown, seen)).encode()).hexdigest()[:12]
            yield f"{number} {len(seen)} {digest}"

    def texts(self) -> list[str]:
        """Return the candidates of one request as text, for people who look for a difference."""
        return [shown(each) for each in self._candidates()]

    # -- requests -------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Candidate]:
        subset: frozenset[str] | None = None
        labels: dict[str, str] | None = None
        match self._draw.randrange(8):
            case 0:
                names = self._names()
                picked = self._draw.sample(names, k=self._draw.randrange(len(names) + 1))
                subset = frozenset(self._address(name) for name in picked) | {"10.9.9.9"}
            case 1:
                subset = frozenset({f"10.0.0.{self._draw.randrange(4)}", "10.0.0.77:1", "None"})
            case 2:
                labels = {"zone": self._draw.choice(ZONES)}
            case 3:
                labels, subset = {"zone": "a", "kind": "x"}, frozenset({"10.0.0.1", "10.0.0.2"})
            case _:
                pass
        prefix = self._prompt() if self._draw.random() < 0.9 else None
        return list(self.fleet.candidates(prefix, now=self._now, subset=subset, labels=labels))

    def _prompt(self) -> Prefix:
        return self.fleet.atlas.prefix(array("I", self._tokens() + [7] * self._draw.randrange(4)))

    def _tokens(self) -> list[int]:
        trunk = self._draw.randrange(N_TRUNKS)
        n_trunk = self._draw.choice((0, 8, 17, 40, TRUNK_TOKENS, TRUNK_TOKENS))
        tail = [9] * self._draw.choice((0, 0, 8, 16, 23))
        return [100 + trunk] * n_trunk + tail

    # -- changes --------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [endpoint.name for endpoint in self.fleet]

    def _any_name(self) -> str:
        return self._draw.choice(self._names())

    def _address(self, name: str) -> str:
        endpoint = self.fleet.get(name)
        assert endpoint is not None
        return str(endpoint.address)

    def _rank(self) -> Rank:
        endpoint = self.fleet.get(self._any_name())
        assert endpoint is not None
        return self._draw.choice(endpoint.ranks)

    def _add(self) -> None:
        number, draw = self._n_added, self._draw
        self._n_added += 1
        name = f"e{number}"
        ranks = draw.choice(((0,), (0,), (0,), (0, 1), (2,), (0, 1, 2)))
        has_events = draw.random() < 0.9
        serving = HostPort(f"10.0.0.{number % 4}", 8000 + number) if draw.random() < 0.9 else None
        addresses = EndpointAddresses(
            serving, None, tuple(RankAddresses(rank, NOWHERE if has_events else None, None) for rank in ranks)
        )
        self._sizes[name] = draw.choice(BLOCK_SIZES)
        self.fleet.add(name, addresses, self._labels())

    def _labels(self) -> dict[str, str]:
        return {"zone": self._draw.choice(ZONES)} | ({"kind": "x"} if self._draw.random() < 0.5 else {})

    def _swap(self) -> None:
        if len(self.fleet) > self._n_endpoints // 2 and self._draw.random() < 0.6:
            self.fleet.forget(self._any_name())
        if len(self.fleet) < self._n_endpoints + 3:
            self._add()

    def _relabel(self) -> None:
        self.fleet.relabel(self._any_name(), self._labels())

    def _tell(self, rank: Rank, *events: Event) -> None:
        if rank.subscription is not None:
            for _ in rank.apply(index_core().decode_batch(payload(events)), live=True) or ():
                pass

    def _store(self) -> None:
        rank = self._rank()
        if self._draw.random() < 0.01:
            self._sizes[rank.endpoint] = self._draw.choice(BLOCK_SIZES)
        size, tokens = self._sizes[rank.endpoint], self._tokens()
        hashes = hashes_of(tokens, size)
        begin = self._draw.randrange(len(hashes)) if hashes and self._draw.random() < 0.3 else 0
        if hashes[begin:]:
            parent = hashes[begin - 1] if begin else None
            medium = MediumName(self._draw.choice(MEDIA))
            words = array("I", tokens[begin * size : len(hashes) * size])
            self._tell(rank, BlockStored(tuple(hashes[begin:]), parent, words, size, medium=medium))

    def _remove_blocks(self) -> None:
        rank = self._rank()
        hashes = hashes_of(self._tokens(), self._sizes[rank.endpoint])
        some = tuple(hashes[self._draw.randrange(len(hashes)) :][:4]) if hashes else ()
        if some:
            self._tell(rank, BlockRemoved(some, medium=MediumName(self._draw.choice(MEDIA))))

    def _clear(self) -> None:
        self._tell(self._rank(), AllBlocksCleared())

    def _scrape(self) -> None:
        draw = self._draw
        adapters = None
        if draw.random() < 0.2:
            adapters = Adapters(
                frozenset(draw.sample("pqr", draw.randrange(3))), frozenset(draw.sample("pq", 1))
            )
        used = draw.choice((0.0, 0.25, draw.random()))
        for name in draw.sample(self._names(), min(len(self.fleet), 3)):
            endpoint = self.fleet.get(name)
            if endpoint is not None and draw.random() < 0.95:
                load = Load(
                    draw.randrange(4), draw.randrange(20), used, self._now - draw.choice((0, 0.1)), adapters
                )
                self.loads.put(name, load)

    def _book(self) -> None:
        prefix = self._prompt()
        seen = list(self.fleet.candidates(prefix, now=self._now))
        if not seen:
            return
        picked = self._draw.choice(seen)
        prediction = self.fleet.routed(picked, prefix, now=self._now)
        if prediction is not None and prediction.node is not None:  # a dropped one counts nowhere
            self._predictions.append(prediction)
        booking = self.fleet.in_flight.book(picked.name, tokens=self._draw.randrange(200), now=self._now)
        if self._draw.random() < 0.3:
            booking.unseen()
        self._bookings.append(booking)

    def _end(self) -> None:
        if self._bookings:
            booking = self._draw.choice(self._bookings)
            if self._draw.random() < 0.5:
                booking.begun()
            else:
                booking.ended()
                self._bookings.remove(booking)

    def _withdraw(self) -> None:
        if self._predictions:
            self.fleet.predictions.withdraw(self._predictions.pop())

    def _sibling(self) -> None:
        if self._siblings is None:
            return
        name = (
            f"e{self._draw.randrange(self._n_added + 2)}"  # also of endpoints that are gone or still to come
        )
        self._other.publish(name, InFlightLoad(self._draw.randrange(5), self._draw.randrange(99)))
        for changed in self._other.channel.drain():
            self._siblings.channel.apply("other", changed)
        if self._draw.random() < 0.05:
            self._siblings.channel.drop("other")

    def _audit(self) -> None:
        expected = self._draw.choice((1000, 5000))
        verdict, reused = self._draw.choice(((Verdict.GOOD, expected), (Verdict.UNKNOWN, expected // 2)))
        audited = Audited(self._any_name(), verdict, None, {"gpu": expected}, {"gpu": reused})
        self.fleet.audited(audited, now=self._now)

    def _trust(self) -> None:
        rank = self._rank()
        subscription = rank.subscription
        if subscription is None:
            return
        match self._draw.randrange(5):
            case 0:
                subscription.disconnected()
            case 1:
                subscription.damaged()
            case _:
                self._n_batches += 1
                seq = self._live.get((rank.endpoint, rank.number), -1) + self._draw.choice((1, 1, 1, 2))
                self._live[rank.endpoint, rank.number] = seq
                content = index_core().decode_batch(payload((), timestamp=float(self._n_batches)))
                subscription.live(seq, content, topic=b"")

    def _restart(self) -> None:
        rank = self._rank()
        self._live.pop((rank.endpoint, rank.number), None)
        if self._draw.random() < 0.5:
            rank.restarted("chance")
        else:
            self.fleet.reset(rank.endpoint)

    def _facts(self) -> None:
        name = self._any_name()
        facts = EngineFacts(
            n_engines=1,
            block_size=self._sizes[name],
            num_gpu_blocks=self._draw.choice((None, 5, 12, 200)),
            process_start_s=self._draw.choice((None, 1.0, 2.0)),
            offloads=self._draw.random() < 0.5,
        )
        self.fleet.facts_changed(name, facts)

    def _tick(self) -> None:
        self._now += self._draw.choice((0.5, 2.5, 6.0))
        self.fleet.tick(now=self._now)

    def _configure(self) -> None:
        audit_lowers_credit = self._draw.random() < 0.7
        config = make_config(
            predictions={"enabled": True, "ttl": "5s"}, audit={"lowerCredit": audit_lowers_credit}
        )
        self.fleet.configure(fleet_settings(config))


def hashes_of(tokens: list[int], size: int) -> list[EngineHash]:
    """Return engine hashes of the full blocks, chained, and the same in every process."""
    ends = range(size, len(tokens) + 1, size)
    texts = (",".join(map(str, tokens[:end])).encode() for end in ends)
    return [EngineHash(int.from_bytes(hashlib.sha256(text).digest()[:7], "little")) for text in texts]


def shown(candidate: Candidate) -> str:
    """Return everything that a candidate shows as text."""
    load, match, flying = candidate.load, candidate.prefix, candidate.in_flight
    adapters = load.adapters if load is not None else None
    parts = (
        candidate.name,
        candidate.address,
        sorted(candidate.labels.items()),
        None if load is None else (load.waiting, load.running, load.kv_utilization, load.updated_at),
        None
        if adapters is None
        else (sorted(adapters.active), sorted(adapters.waiting), 4),
        None
        if match is None
        else (
            match.tiers, match.block_size, match.n_blocks, match.held.tier_blocks, match.held.union_blocks,
            match.held.usable_blocks, match.held.runs, match.rank, sorted(match.other_ranks.items()),
            match.predicted_blocks,
        ),
        candidate.credit,
        (flying.requests, flying.tokens),
        candidate.trust.value,
    )  # fmt: skip
    return repr(parts)
