"""The instances that a query of the standard contract is about, and the answer about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ...fleet.endpoint import Endpoint
from ...fleet.fleet import Fleet
from ...fleet.instance import DEFAULT_TENANT
from ...indexer.figures import BLOCK_SIZE, RANK, USABLE
from ...indexer.match_columns import MatchColumns

N_SHOWN = 3
"""Tiers that the contract has a field for."""

MAX_KEPT = 16
"""Choices of instances that are kept; callers mostly repeat one."""

_encode = msgspec.json.Encoder().encode


class Selection(Protocol):
    """What a query says about the instances it means; None for all."""

    tenant_id: str | None
    instance_id: int | str | None
    model: str | None


class Served(Protocol):
    """Decides whether an endpoint is meant by a model's name."""

    def served(self, own: str | None, asked: str | None) -> bool:
        """Return whether an endpoint serves `asked`; `own` is its model, None for the configured one."""
        ...


class _Match(msgspec.Struct, frozen=True, gc=False):
    """An `InstanceMatch` that is written and not checked."""

    longest_matched: int
    GPU: int
    CPU: int
    DISK: int
    DP: dict[str, int]


class _Place(NamedTuple):
    """Where the answer shows an endpoint, and the numbers of its ranks."""

    tenant: str
    name: str
    ranks: tuple[int, ...]


class AskedInstances:
    """Some instances, and the answer if they hold nothing, which is written once.

    Args:
        found: their endpoints, with their rows.
        tenant: of which the caller asked, None for all.

    Attributes:
        salts: row -> cache salt of an instance that has one.
    """

    def __init__(self, found: Iterable[tuple[int, Endpoint]], tenant: str | None) -> None:
        self._places: dict[int, _Place] = {}
        self._nothing: dict[str, dict[str, _Match | msgspec.Raw]] = {}
        self.salts: dict[int, str] = {}
        if tenant in (None, DEFAULT_TENANT):
            self._nothing[DEFAULT_TENANT] = {}
        written: dict[tuple[int, ...], msgspec.Raw] = {}
        for row, endpoint in found:
            instance, ranks = endpoint.instance, tuple([rank.number for rank in endpoint.ranks])
            if ranks not in written:
                written[ranks] = msgspec.Raw(_encode(_Match(0, 0, 0, 0, {str(rank): 0 for rank in ranks})))
            self._places[row] = _Place(instance.tenant, instance.name, ranks)
            self._nothing.setdefault(instance.tenant, {})[instance.name] = written[ranks]
            if instance.salt is not None:
                self.salts[row] = instance.salt
        self._answer = _encode(self._nothing)

    def answer(self, columns: MatchColumns | None) -> bytes:
        """Return what each instance holds of a prompt, by tenant, as JSON.

        Args:
            columns: the match of the prompt with every endpoint, None if no block size is known.
        Cost: a few operations on columns, 1 us per instance that holds something, and copying the text of the others.
        """
        if columns is None:
            return self._answer
        n_tiers = len(columns.tiers)
        held: list[int] = columns.figures[:n_tiers].max(axis=0).nonzero()[0].tolist()
        if columns.other_ranks:
            held += columns.other_ranks.keys() - set(held)
        if not held:
            return self._answer
        answer = {tenant: instances.copy() for tenant, instances in self._nothing.items()}
        places, others = self._places, columns.other_ranks
        written: dict[tuple[object, ...], msgspec.Raw] = {}
        for row, column in zip(held, columns.figures[:, held].T.tolist(), strict=True):
            place = places.get(row)
            if place is None:
                continue
            tenant, name, ranks = place
            computed = int(row in columns.all_but_last)
            if row in others:
                answer[tenant][name] = _match(column, n_tiers, others[row], ranks, computed)
                continue
            same = (*column, ranks, computed)  # many hold the same: a common prefix
            if same not in written:
                written[same] = msgspec.Raw(_encode(_match(column, n_tiers, {}, ranks, computed)))
            answer[tenant][name] = written[same]
        return _encode(answer)


class Asked:
    """The instances that queries are about, kept for the queries that follow.

    Args:
        fleet: the endpoints.
        names: decides about models; the answers of `served` change only with the fleet.
    """

    def __init__(self, fleet: Fleet, names: Served) -> None:
        self._fleet, self._names = fleet, names
        self._kept: dict[tuple[str | None, int | str | None, str | None], AskedInstances] = {}
        self._changes = fleet.changes

    def of(self, query: Selection) -> AskedInstances:
        """Return the instances of the requested tenant, name and model.

        Cost: O(1), or O(endpoints) if this is asked for the first time after a change of the fleet.
        """
        if self._fleet.changes != self._changes:
            self._kept.clear()
            self._changes = self._fleet.changes
        key = (query.tenant_id, query.instance_id, query.model)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            found = self._kept[key] = AskedInstances(self._found(query), query.tenant_id)
        return found

    def _found(self, query: Selection) -> Iterable[tuple[int, Endpoint]]:
        name = None if query.instance_id is None else str(query.instance_id)
        for row, endpoint in enumerate(self._fleet):
            instance = endpoint.instance
            if (
                query.tenant_id in (None, instance.tenant)
                and name in (None, instance.name)
                and self._names.served(instance.model, query.model)
            ):
                yield row, endpoint


def replace_rows(columns: MatchColumns | None, rows: Sequence[int], other: MatchColumns | None) -> None:
    """Replace what some endpoints hold by what `other` says of them, where it knows their block size."""
    if columns is None or other is None:
        return
    sizes = other.line(BLOCK_SIZE)
    known = [row for row in rows if sizes[row]]
    columns.figures[:, known] = other.figures[:, known]
    ranks = {row: numbers for row, numbers in columns.other_ranks.items() if row not in known}
    columns.all_but_last = (columns.all_but_last - set(known)) | (other.all_but_last & set(known))
    columns.other_ranks = ranks | {row: other.other_ranks[row] for row in known if row in other.other_ranks}


def _match(
    column: Sequence[int], n_tiers: int, others: Mapping[int, int], ranks: tuple[int, ...], computed: int
) -> _Match:
    size = column[2 * n_tiers + BLOCK_SIZE]
    longest = column[2 * n_tiers + USABLE] * size - computed
    tiers = [blocks * size for blocks in column[:n_tiers]]
    usable = {**others, column[2 * n_tiers + RANK]: longest} if any(tiers) else others
    gpu, cpu, disk = [*tiers, 0, 0][:N_SHOWN]
    return _Match(longest, gpu, cpu, disk, {str(rank): usable.get(rank, 0) for rank in ranks})
