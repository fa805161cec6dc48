"""Agreement on what is changed over REST: in force on all replicas, or on none; without I/O.

Every replica publishes a `Word`: its changes in force, its own proposal, and its votes on those of its siblings. A change is
proposed, each living sibling checks it and votes, and with all votes it is put in force by its proposer first. The others see
newer changes in force there, and put them in force too. One that missed all of it, or joins later, does the same.

A replica votes for one proposal at a time, and those of replicas with smaller ids come first: a proposer that sees one of
those withdraws its own and proposes it again afterwards. So changes made at once take effect one after the other, in the same order everywhere.
Between parts of a network that do not see each other, the newest changes win once they do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from .word import MAX_CHANGES_BYTES, Changes, Proposal, Stamp, Vote, Word


@dataclass(frozen=True, slots=True)
class Check:
    """To do: check whether a proposal could be put in force, and call `checked`."""

    changes: Changes


@dataclass(frozen=True, slots=True)
class PutInForce:
    """To do: put the changes in force, in place of all earlier ones, and call `in_force`."""

    changes: Changes


@dataclass(frozen=True, slots=True)
class Outcome:
    """To do: answer the caller of `propose`.

    Attributes:
        ticket: as `propose` returned it.
        stamp: of the change; None if it is in force nowhere.
        refusals: replica -> why it refused, or that it was silent; with a stamp: why it is not in force there.
    """

    ticket: int
    stamp: Stamp | None
    refusals: Mapping[str, str] = field(default_factory=dict[str, str])


Action = Check | PutInForce | Outcome

SILENT = "silent: it did not answer in time"
STARTING = "starting: it takes the change before it decides for requests"
GONE = "gone: it fell silent while the change was being made"
LARGE = (
    f"all changes over REST together would have more than {MAX_CHANGES_BYTES} bytes; write them to the file"
)


@dataclass(slots=True)
class _Asked:
    """A change that a caller asked for.

    Attributes:
        patience_ends_ns: when it is given up at the latest, unless it is decided.
        ends_ns: when it is given up as things are.
        proposal: as it is published; None while another one comes first.
        voters: siblings that have to vote.
        is_decided: whether it is being put in force, or is.
        stamp: of the change once it is in force here.
        waits_for: siblings that have not confirmed it since.
    """

    ticket: int
    changed: dict[str, bytes | None]
    force: bool
    patience_ends_ns: int
    ends_ns: int
    proposal: Proposal | None = None
    voters: frozenset[str] = frozenset()
    is_decided: bool = False
    stamp: Stamp | None = None
    waits_for: set[str] = field(default_factory=set[str])


class Agreement:
    """One replica's part.

    Args:
        replica: its id.
        name: its name, for people.
        living: returns the ids of the siblings that live.
        clock: returns monotonic nanoseconds.
        limit_ns: longest time from a proposal to its last vote. It has to be shorter than the silence after which
            siblings drop a replica: then none of them votes for another change while this one may still be decided.
        patience_ns: longest wait for the changes of others that come first.
    """

    def __init__(
        self,
        replica: str,
        name: str,
        *,
        living: Callable[[], Collection[str]],
        clock: Callable[[], int],
        limit_ns: int,
        patience_ns: int,
    ) -> None:
        self._replica, self._living, self._clock = replica, living, clock
        self._limit_ns, self._patience_ns = limit_ns, patience_ns
        self._word = Word(name)
        self._words: dict[str, Word] = {}
        self._tickets = self._number = 0
        self._asked: list[_Asked] = []
        """Own changes; the first one is proposed or in force, the others wait."""
        self._promised: Stamp | None = None
        """The sibling's proposal that this replica has voted for, or checks."""
        self._putting: Changes | None = None
        """Changes that are being put in force."""
        self._refused: Stamp | None = None
        """Changes that could not be put in force here."""
        self._actions: list[Action] = []

    @property
    def word(self) -> Word:
        """What this replica says now."""
        return self._word

    @property
    def words(self) -> Mapping[str, Word]:
        """What its siblings say, by id."""
        return self._words

    def todo(self) -> Sequence[Action]:
        """Return what is to do since the last call, in this order."""
        actions, self._actions = self._actions, []
        return actions

    def propose(self, changed: Mapping[str, bytes | None], *, force: bool = False) -> int:
        """Want a change in force everywhere; its `Outcome` has the ticket that is returned.

        Args:
            changed: key -> value in JSON, None to remove it.
            force: put it in force here in any case; siblings follow when they can.
        """
        self._tickets += 1
        ends_ns = self._clock() + self._patience_ns
        asked = _Asked(self._tickets, dict(changed), force, ends_ns, ends_ns)
        self._asked.append(asked)
        self._step()
        return asked.ticket

    def heard(self, owner: str, word: Word) -> None:
        """Take the word of a sibling."""
        self._words[owner] = word
        self._step()

    def gone(self, owner: str) -> None:
        """Forget a sibling that is gone. A change that lacks its vote is in force nowhere."""
        self._words.pop(owner, None)
        if self._asked:
            first = self._asked[0]
            first.waits_for.discard(owner)
            if first.proposal is not None and not first.is_decided and owner in first.voters:
                self._end(Outcome(first.ticket, None, {_name_of(owner): GONE}))
        self._step()

    def tick(self) -> None:
        """End what has taken too long."""
        now_ns = self._clock()
        for asked in [each for each in self._asked if now_ns >= each.ends_ns]:
            if asked.stamp is not None:
                late = {self._name(each): self._why_not(each) for each in asked.waits_for}
                self._end(Outcome(asked.ticket, asked.stamp, late))
            elif not asked.is_decided:
                self._withdraw_late(asked)
        self._step()

    def checked(self, stamp: Stamp, refusal: str) -> None:
        """Take the result of a `Check`; an empty refusal is a vote for it."""
        if stamp == self._promised:
            votes = {**self._word.votes, stamp.replica: Vote(stamp, refusal)}
            self._say(votes=votes)
        self._step()

    def in_force(self, stamp: Stamp, *, generation: int, digest: str, refusal: str = "") -> None:
        """Take the result of `PutInForce`; with a refusal, nothing has changed."""
        putting, self._putting = self._putting, None
        if putting is None or putting.stamp != stamp:
            return
        own = next((each for each in self._asked if each.is_decided and each.stamp is None), None)
        own = own if own is not None and stamp.replica == self._replica else None
        if not refusal:
            is_proposed = own is not None and own.proposal is not None
            proposal = None if is_proposed else self._word.proposal
            self._say(changes=putting, generation=generation, digest=digest, refused=None, proposal=proposal)
        elif own is None:
            self._refused = stamp
            self._say(refused=Vote(stamp, refusal))
        if own is not None:
            self._decided(own, None if refusal else stamp, refusal)
        self._step()

    def restated(self, *, generation: int, digest: str, is_starting: bool = False) -> None:
        """Take another state of the configuration, after a file was loaded. Changes that were refused are tried again."""
        self._refused = None
        self._say(generation=generation, digest=digest, is_starting=is_starting)
        self._step()

    def _step(self) -> None:
        """Do what the words allow now."""
        self._vote()
        self._follow()
        self._confirm()
        if self._asked and not self._asked[0].is_decided:
            self._advance(self._asked[0])

    def _advance(self, asked: _Asked) -> None:
        """Propose, decide or withdraw the change whose turn it is."""
        if asked.force:
            if self._putting is None:
                changes = self._newest().with_(asked.changed, self._next_stamp())
                if changes.is_large:
                    self._end(Outcome(asked.ticket, None, {self._word.name: LARGE}))
                else:
                    asked.is_decided = True
                    self._put(changes)
        elif asked.proposal is None:
            if self._may_propose():
                self._propose(asked)
        elif self._first() != asked.proposal.stamp or self._is_behind(asked.proposal.base):
            asked.proposal, asked.ends_ns = None, asked.patience_ends_ns
            self._say(proposal=None)
            self._step()
        else:
            self._count(asked, asked.proposal)

    def _propose(self, asked: _Asked) -> None:
        stamp = self._next_stamp()
        asked.proposal = Proposal(stamp, self._word.changes.stamp, asked.changed)
        asked.voters = frozenset(self._living()) | self._words.keys()
        asked.ends_ns = self._clock() + self._limit_ns
        if self._changed(asked.proposal).is_large:
            self._end(Outcome(asked.ticket, None, {self._word.name: LARGE}))
        else:
            self._say(proposal=asked.proposal)
            self._count(asked, asked.proposal)

    def _count(self, asked: _Asked, proposal: Proposal) -> None:
        """Decide once all have voted."""
        votes = self._votes(proposal)
        refusals = {self._name(owner): refusal for owner, refusal in votes.items() if refusal}
        if refusals:
            self._end(Outcome(asked.ticket, None, refusals))
        elif asked.voters <= votes.keys() and self._putting is None and self._clock() < asked.ends_ns:
            asked.is_decided = True
            self._put(self._changed(proposal))

    def _votes(self, proposal: Proposal) -> dict[str, str]:
        """Return replica -> why it refuses a proposal, empty if it accepts. One that starts accepts: it follows before it decides."""
        found = {owner: "" for owner, word in self._words.items() if word.is_starting}
        for owner, word in self._words.items():
            if (vote := word.votes.get(self._replica)) is not None and vote.stamp == proposal.stamp:
                found[owner] = vote.refusal
        return found

    def _decided(self, asked: _Asked, stamp: Stamp | None, refusal: str) -> None:
        """Wait for the siblings to confirm a change that is in force here."""
        if stamp is None:
            self._end(Outcome(asked.ticket, None, {self._word.name: refusal}))
        else:
            asked.stamp, asked.waits_for = stamp, set(self._words)
            asked.ends_ns = self._clock() + self._limit_ns

    def _confirm(self) -> None:
        asked = self._asked[0] if self._asked else None
        if asked is None or asked.stamp is None:
            return
        waiting = {each for each in asked.waits_for if self._is_awaited(each, asked.stamp)}
        asked.waits_for = waiting
        if not waiting:
            refused = {
                word.name: self._why_not(owner)
                for owner, word in self._words.items()
                if word.changes.stamp < asked.stamp
            }
            self._end(Outcome(asked.ticket, asked.stamp, refused))

    def _is_awaited(self, owner: str, stamp: Stamp) -> bool:
        word = self._words.get(owner)
        has_refused = word is not None and word.refused is not None and word.refused.stamp >= stamp
        return word is not None and word.changes.stamp < stamp and not (has_refused or word.is_starting)

    def _withdraw_late(self, asked: _Asked) -> None:
        proposal = asked.proposal
        if proposal is None:
            stamps = self._stamps()
            who = self._name(min(stamps).replica) if stamps else self._word.name
            refused = self._word.refused
            why = (
                f"lacks earlier changes: {refused.refusal}" if refused else "makes another change; try again"
            )
            refusals = {who: why}
        else:
            refusals = {self._name(owner): SILENT for owner in asked.voters - self._votes(proposal).keys()}
        self._end(Outcome(asked.ticket, None, refusals))

    def _end(self, outcome: Outcome) -> None:
        """Answer the caller, and withdraw what is left of the proposal."""
        ended = next(each for each in self._asked if each.ticket == outcome.ticket)
        self._asked.remove(ended)
        if ended.proposal is not None and self._word.proposal == ended.proposal:
            self._say(proposal=None)
        self._actions.append(outcome)
        self._step()

    def _vote(self) -> None:
        """Promise the vote to the first proposal, once the one promised before is no longer made."""
        if self._promised is not None and self._promised not in self._stamps():
            votes = {owner: vote for owner, vote in self._word.votes.items() if vote.stamp in self._stamps()}
            self._promised = None
            self._say(votes=votes)
        first = self._first()
        is_deciding = bool(self._asked) and self._asked[0].is_decided and self._asked[0].stamp is None
        if first is None or self._promised is not None or first.replica == self._replica or is_deciding:
            return
        proposal, refused = self._words[first.replica].proposal, self._word.refused
        if proposal is None or self._putting is not None:
            return
        # one on an older state is withdrawn by its proposer, and this replica follows to a newer one first
        if proposal.base == self._word.changes.stamp:
            self._promised = first
            self._actions.append(Check(self._changed(proposal)))
        elif refused is not None and proposal.base == refused.stamp:
            self._promised = first
            why = f"lacks the changes before it: {refused.refusal}"
            self._say(votes={**self._word.votes, first.replica: Vote(first, why)})

    def _follow(self) -> None:
        """Put the newest changes of a sibling in force."""
        newest = self._newest()
        if self._putting is None and newest.stamp not in (self._word.changes.stamp, self._refused):
            self._put(newest)

    def _newest(self) -> Changes:
        """Return the newest changes of all replicas."""
        words = (self._word, *self._words.values())
        return max((word.changes for word in words), key=lambda each: each.stamp)

    def _put(self, changes: Changes) -> None:
        self._putting = changes
        self._actions.append(PutInForce(changes))

    def _changed(self, proposal: Proposal) -> Changes:
        return self._word.changes.with_(proposal.changed, proposal.stamp)

    def _may_propose(self) -> bool:
        is_free = self._promised is None and self._first() is None and self._putting is None
        return is_free and not self._is_behind(self._word.changes.stamp)

    def _is_behind(self, base: Stamp) -> bool:
        """Return whether the state that a proposal changes is no longer the newest."""
        return base != self._newest().stamp

    def _stamps(self) -> set[Stamp]:
        """Return the stamps of the siblings' proposals."""
        return {word.proposal.stamp for word in self._words.values() if word.proposal is not None}

    def _first(self) -> Stamp | None:
        """Return the stamp of the proposal that comes first, None if there is none."""
        # in the order of the replicas: by numbers, two that propose again and again could yield to each other for ever
        own = {self._word.proposal.stamp} if self._word.proposal is not None else set[Stamp]()
        return min(self._stamps() | own, key=lambda stamp: stamp.replica, default=None)

    def _next_stamp(self) -> Stamp:
        """Return a stamp that is newer than all, and than any own one: votes for a proposal that was withdrawn may still come."""
        words = (self._word, *self._words.values())
        known = max(max(word.generation, word.changes.stamp.number) for word in words)
        self._number = max(known, self._number) + 1
        return Stamp(self._number, self._replica)

    def _say(self, **changed: object) -> None:
        self._word = msgspec.structs.replace(self._word, **changed)

    def _name(self, owner: str) -> str:
        word = self._words.get(owner)
        return word.name if word is not None else _name_of(owner)

    def _why_not(self, owner: str) -> str:
        word = self._words.get(owner)
        if word is not None and word.refused is not None:
            return word.refused.refusal
        return STARTING if word is not None and word.is_starting else SILENT


def _name_of(owner: str) -> str:
    """Return the name in an id of a replica."""
    return owner.partition("/")[0]
