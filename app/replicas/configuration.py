"""The configuration of all replicas: what REST changes on one of them holds on all, or on none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...configs.changes import Change
from ...configs.errors import ConfigError
from ...events.errors import KVAtlasError
from ...fleet.errors import ConfigRefusedError
from ...fleet.replicas.agreement import LARGE, Agreement, Check, Outcome, PutInForce
from ...fleet.replicas.word import Changes, Stamp
from ...fleet.replicas.words import Words
from ...routing.plan.live import LiveConfig
from ...routing.plan.rest_changes import digest, ended_by_file

log = logging.getLogger(__name__)

CHANNEL = "configuration"
"""Name of the channel."""

LIMIT_SHARE = 0.8
"""Longest time for the votes on a change, as a share of the silence after which a replica is dropped."""

PATIENCE_S = 5.0
"""Longest wait for changes made at the same time on other replicas."""

CATCH_UP_S = 1.0
"""Longest wait at the start for the configurations of the siblings."""

TURN_S = 0.05
"""Time between two looks at what takes too long, while a change is being made."""


class Part(Protocol):
    """A part of what REST changes that is not in the configuration."""

    def check(self, values: Mapping[str, object]) -> None:
        """Raise a KVAtlasError if all that REST changed could not be put in force."""
        ...

    async def put(self, values: Mapping[str, object]) -> None:
        """Put in force all that REST changed; raises ConfigRefusedError, with nothing changed, if it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class Agreed:
    """A change that is in force.

    Attributes:
        changes: what it changed here.
        behind: replica -> why it is not in force there yet.
    """

    changes: list[Change]
    behind: Mapping[str, str]


class SharedConfiguration:
    """This replica's configuration among those of its siblings.

    Args:
        replica: id of this replica.
        name: its name.
        live: the configuration in force.
        living: returns the ids of the siblings that live.
        silent_s: time after which a silent replica is dropped.

    Attributes:
        agreement: with the siblings.
        words: the channel that carries it.
        part: what REST changes beside the configuration; None if there is nothing.
    """

    def __init__(
        self,
        replica: str,
        name: str,
        live: LiveConfig,
        *,
        living: Callable[[], Collection[str]],
        silent_s: float,
    ) -> None:
        self._replica, self._live, self._living = replica, live, living
        self.agreement = Agreement(
            replica,
            name,
            living=living,
            clock=time.monotonic_ns,
            limit_ns=round(silent_s * LIMIT_SHARE * 1e9),
            patience_ns=round(PATIENCE_S * 1e9),
        )
        self.words = Words(self.agreement, self._wake)
        self.part: Part | None = None
        self._has_work = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[tuple[Outcome, list[Change]]]] = {}
        self._made: dict[Stamp, list[Change]] = {}
        """What changes of this replica that siblings have not confirmed yet changed here."""
        live.on_change = self._restated
        live.on_file = self._file_loaded
        self.agreement.restated(generation=live.generation, digest=digest(live.in_force), is_starting=True)

    async def change(
        self, changed: Mapping[str, object], *, ended: Collection[str] = (), force: bool = False
    ) -> Agreed:
        """Put a change in force on all replicas that live, or on none.

        Args:
            changed: see `rest_changes`.
            ended: keys of earlier changes that hold no more.
            force: put it in force here in any case; siblings follow when they can.
        Raises:
            ConfigError: a name or value is impossible.
            ConfigRefusedError: it is in force nowhere; the message says which replica refused it or was silent.
        """
        values: dict[str, bytes | None] = dict.fromkeys(ended)
        values |= {key: json.dumps(value).encode() for key, value in changed.items()}
        before = self.agreement.word.changes
        self._check(before.with_(values, before.stamp))
        ticket = self.agreement.propose(values, force=force)
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._wake()
        try:
            outcome, made = await future
        finally:
            del self._waiting[ticket]
        if outcome.stamp is None:
            reasons = "; ".join(f"{name}: {why}" for name, why in outcome.refusals.items())
            may_force = not force and LARGE not in outcome.refusals.values()
            remedy = ". With ?force=true it is in force here, and the others follow when they can"
            raise ConfigRefusedError(f"in force on no replica: {reasons}{remedy if may_force else ''}")
        return Agreed(made, outcome.refusals)

    async def catch_up(self) -> None:
        """Put the newest change of the siblings that live in force; to be called once, at the start, before `run`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                while not self.agreement.words.keys() >= set(self._living()):
                    self._has_work.clear()
                    await self._has_work.wait()
        await self._work()

    async def run(self) -> None:
        """Do what the agreement asks for, until cancelled. At rest it waits for words alone."""
        await self._restated()  # siblings wait for votes of this replica from now on
        while True:
            self._has_work.clear()
            await self._work()
            self.words.say()
            with contextlib.suppress(TimeoutError):
                # not `wait_for`, which before Python 3.12 may lose a cancellation
                async with asyncio.timeout(TURN_S if self._waiting else None):
                    await self._has_work.wait()
            self.agreement.tick()

    async def _work(self) -> None:
        while actions := self.agreement.todo():
            for action in actions:
                await self._do(action)

    async def _do(self, action: Check | PutInForce | Outcome) -> None:
        match action:
            case Check(changes):
                self.agreement.checked(changes.stamp, self._refusal(changes))
            case PutInForce(changes):
                await self._put(changes)
            case Outcome(ticket, stamp):
                made = self._made.pop(stamp, []) if stamp is not None else []
                if (future := self._waiting.get(ticket)) is not None and not future.done():
                    future.set_result((action, made))
        self.words.say()

    async def _put(self, changes: Changes) -> None:
        who = changes.stamp.replica.partition("/")[0]
        # first, so that the part is not put in force if the configuration cannot be
        refusal = self._refusal(changes)
        if not refusal:
            try:
                if self.part is not None:
                    await self.part.put(_values(changes))
                made = await self._live.put_changes(
                    _values(changes), origin=f"REST on replica {who}", generation=changes.stamp.number
                )
                if changes.stamp.replica == self._replica:
                    self._made[changes.stamp] = made
            except Exception as error:  # noqa: BLE001 - it is said
                refusal = _refusal_of(error)
                await self._put_back()
        if refusal:
            log.warning(
                "generation %d of replica %s is not in force here: %s", changes.stamp.number, who, refusal
            )
        self.agreement.in_force(
            changes.stamp,
            generation=self._live.generation,
            digest=digest(self._live.in_force),
            refusal=refusal,
        )

    async def _put_back(self) -> None:
        """Put the part in force as it was before a change that failed."""
        if self.part is not None:
            try:
                await self.part.put(_values(self.agreement.word.changes))
            except Exception:
                log.exception("what a change that failed has registered or removed is not as before")

    def _refusal(self, changes: Changes) -> str:
        try:
            self._check(changes)
        except Exception as error:  # noqa: BLE001 - it is said
            return _refusal_of(error)
        return ""

    def _check(self, changes: Changes) -> None:
        values = _values(changes)
        self._live.check_changes(values)
        if self.part is not None:
            self.part.check(values)

    def _wake(self) -> None:
        self._has_work.set()

    async def _restated(self) -> None:
        self.agreement.restated(generation=self._live.generation, digest=digest(self._live.in_force))
        self._wake()

    def _file_loaded(self) -> None:
        """End for all what REST changed of the file that was loaded anew."""
        gone = ended_by_file(self.agreement.word.changes.values)
        if gone:
            self.agreement.propose(dict.fromkeys(gone), force=True)
            self._wake()


def _refusal_of(error: Exception) -> str:
    """Return why changes are not in force. A fault of ours is one more reason: without an answer the agreement would wait for ever."""
    if isinstance(error, (ConfigError, KVAtlasError, ValueError)):
        return str(error)
    log.error("a change failed", exc_info=error)
    return f"it failed with {type(error).__name__}: {error}"


def _values(changes: Changes) -> dict[str, object]:
    """Return the values of changes.

    Raises:
        ValueError: one is no JSON, or nests too deeply.
    """
    try:
        return {key: json.loads(value) for key, value in changes.values.items()}
    except RecursionError as error:
        raise ValueError(f"a value nests too deeply: {error}") from None
