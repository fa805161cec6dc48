"""Prompts that siblings sent to endpoints: what these will hold of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from ...indexer.atlas import Atlas
from ...indexer.match import PrefixMatch
from ...indexer.predicted import Prediction
from ...indexer.prefix import Prefix
from ..predictions import Predictions
from .channel import MAX_PAYLOAD_BYTES, UNREADABLE, MalformedError

MAX_KEYS = 100_000
"""Most block keys of one prompt that are sent, 800 kB; of a longer one the beginning."""

MAX_PREDICTED = 1_000_000
"""Most keys of open predictions in a whole, 8 MB: those of the newest. Older ones are soon confirmed by events."""

MAX_LEARNED = 500_000
"""Most keys of learned blocks in a whole, 4 MB; each endpoint has an equal share. Transports drop what is more than they queue, so
a longer whole would never be complete; and taking it in would hold the loop until siblings count this replica as silent."""

MAX_NUMBERS = 5_000
"""Most numbers of predictions in one payload, of at most 9 bytes each."""

_ROOM = 50_000
"""Bytes of a payload that are left for numbers."""

MAX_OPEN = 20_000
"""Most open predictions of one sibling; further ones are not taken."""

PRUNE_FROM = 1024
"""Open predictions from which the ended ones among them are looked for."""

LONGEST_S = 600.0
"""Longest lifetime of a sibling's prediction."""

_Number = Annotated[int, Meta(ge=0, le=2**62)]
_Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]


class Sent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One prompt that was sent to an endpoint, or blocks that were learned from several.

    Attributes:
        number: of the prediction, unique among those of its owner; 0 if nothing is predicted.
        endpoint: its name.
        block_size: tokens per block.
        lookahead: tokens after a block that belong to its key.
        keys: chained keys of the prompt's full blocks, 8 bytes each, little-endian.
        ttl_s: lifetime of the prediction, once its request does not wait any more.
        wait_s: seconds for which it may yet wait in the engine's queue; 0 once the response has begun.
    """

    number: _Number
    endpoint: Annotated[str, Meta(max_length=512)]
    block_size: Annotated[int, Meta(ge=1, le=2**20)]
    lookahead: Annotated[int, Meta(ge=0, le=1024)]
    keys: Annotated[bytes, Meta(min_length=8, max_length=8 * MAX_KEYS)]
    ttl_s: _Seconds
    wait_s: _Seconds

    @property
    def n_bytes(self) -> int:
        """Bytes of its encoded form, or somewhat more."""
        return len(self.keys) + 4 * len(self.endpoint) + 64


class Changes(msgspec.Struct, array_like=True):
    """Payload of the channel: prompts sent, and numbers of predictions whose response began, or that were withdrawn."""

    sent: list[Sent] = []
    begun: list[_Number] = []
    withdrawn: list[_Number] = []


_CHANGES = msgspec.msgpack.Decoder(Changes)
_ENCODE = msgspec.msgpack.Encoder().encode


class _Waiting(NamedTuple):
    """A prompt to be sent with the next `drain`."""

    number: int
    endpoint: str
    block_size: int
    lookahead: int
    keys: array[int]
    prediction: Prediction | None


class Routes:
    """Channel `routes`: prompts that each replica sent to endpoints.

    Siblings predict the same blocks there, until events confirm them, they expire, or their owner is gone. An endpoint whose
    blocks are known from routing alone learns from all replicas; what it has learned outlives them, since the engine has it.

    Args:
        atlas: the index.
        predictions: open predictions of the fleet, own and siblings'; tells this channel of its own.
        clock: returns monotonic seconds.
    """

    def __init__(self, atlas: Atlas, predictions: Predictions, clock: Callable[[], float]) -> None:
        self._atlas, self._predictions, self._clock = atlas, predictions, clock
        self._on_change: Callable[[], None] = _nothing
        self._waiting: list[_Waiting] = []
        self._begun: list[int] = []
        self._withdrawn: list[int] = []
        self._last = 0
        self._own: dict[Prediction, int] = {}
        """Own predictions with their numbers; some may have ended."""
        self._prune_at = PRUNE_FROM
        self._theirs: dict[str, dict[int, Prediction]] = {}
        """By owner and number; some may have ended."""
        predictions.listener = self

    # -- what this replica sends ----------------------------------------------------------------------------------

    def routed(
        self, endpoint: str, prefix: Prefix, match: PrefixMatch, prediction: Prediction | None
    ) -> None:
        """Publish a prompt that was sent to an endpoint, if siblings cannot know from events what it will hold."""
        ledger = self._atlas.ledger(endpoint, match.rank)
        if prediction is None and not ledger.follows_routing:
            return
        number = 0
        if prediction is not None:
            number = self._last = self._last + 1
            self._own[prediction] = number
            if len(self._own) > self._prune_at:
                self._own = {each: own for each, own in self._own.items() if each.node is not None}
                self._prune_at = max(PRUNE_FROM, 2 * len(self._own))
        keys = prefix.keys(match.block_size, ledger.lookahead)
        if keys:
            waiting = _Waiting(number, endpoint, match.block_size, ledger.lookahead, keys, prediction)
            self._waiting.append(waiting)
            self._on_change()

    def begun(self, prediction: Prediction) -> None:
        """Publish that the response to an own prediction's request began."""
        number = self._own.get(prediction)
        if number is not None and prediction.node is not None:
            self._begun.append(number)
            self._on_change()

    def withdrawn(self, prediction: Prediction) -> None:
        """Publish that an own prediction was withdrawn."""
        number = self._own.pop(prediction, None)
        if number is not None:
            self._withdrawn.append(number)
            self._on_change()

    def listen(self, on_change: Callable[[], None]) -> None:
        """See `Channel.listen`."""
        self._on_change = on_change

    def drain(self) -> Sequence[bytes]:
        """See `Channel.drain`."""
        if not (self._waiting or self._begun or self._withdrawn):
            return []
        now = self._clock()
        sent = [_sent(each, now) for each in self._waiting]
        changes = Changes(sent, self._begun, self._withdrawn)
        self._waiting, self._begun, self._withdrawn = [], [], []
        return list(_payloads(changes))

    def whole(self) -> Sequence[bytes]:
        """See `Channel.whole`: the newest open predictions, and the most recently used blocks that endpoints have from routing."""
        now = self._clock()
        sent: list[Sent] = []
        n_left = MAX_PREDICTED
        for each, number in reversed(self._own.items()):
            if each.node is None:
                continue
            keys = each.keys()
            n_left -= len(keys)
            if n_left < 0:
                break
            sent.append(
                _sent(_Waiting(number, each.endpoint, each.block_size, each.lookahead, keys, each), now)
            )
        learners = list(self._atlas.learners())
        share = MAX_LEARNED // max(1, len(learners))
        for endpoint, ledger in learners:
            keys, size = ledger.learned_keys()[:share], ledger.block_size
            if size is None:
                continue
            # the most recently used blocks are applied last
            for begin in reversed(range(0, len(keys), MAX_KEYS)):
                part = keys[begin : begin + MAX_KEYS]
                sent.append(_sent(_Waiting(0, endpoint, size, ledger.lookahead, part, None), now))
        return list(_payloads(Changes(sent))) if sent else []

    # -- what siblings sent ---------------------------------------------------------------------------------------

    def apply(self, owner: str, payload: bytes) -> None:
        """See `Channel.apply`."""
        changes = _decoded(payload)
        theirs = self._theirs.setdefault(owner, {})
        for each in changes.sent:
            keys = array("Q", each.keys)
            self._learn(each, keys)
            self._predict(each, keys, theirs)
        for number in changes.begun:
            if (prediction := theirs.get(number)) is not None:
                prediction.begun()
        for number in changes.withdrawn:
            if (prediction := theirs.pop(number, None)) is not None:
                self._predictions.withdraw(prediction)

    def replace(self, owner: str, payloads: Sequence[bytes]) -> None:
        """See `Channel.replace`. Of learned blocks those that are known keep their place in the order of use."""
        whole = [_decoded(payload) for payload in payloads]
        self.drop(owner)
        theirs = self._theirs[owner] = {}
        for changes in whole:
            for each in changes.sent:
                keys = array("Q", each.keys)
                self._learn(each, keys, only_new=True)
                self._predict(each, keys, theirs)

    def drop(self, owner: str) -> None:
        """See `Channel.drop`. What endpoints have learned stays: the engines still have it."""
        for prediction in self._theirs.pop(owner, {}).values():
            self._predictions.withdraw(prediction)

    def _learn(self, sent: Sent, keys: array[int], *, only_new: bool = False) -> None:
        for ledger in self._atlas.ledgers_of(sent.endpoint):
            if ledger.block_size != sent.block_size or ledger.lookahead != sent.lookahead:
                continue
            if not only_new:
                if ledger.follows_routing:  # events tell the rest
                    ledger.routed(keys)
            else:
                ledger.learn_more(keys)

    def _predict(self, sent: Sent, keys: array[int], theirs: dict[int, Prediction]) -> None:
        number = sent.number
        if not number or not sent.ttl_s or number in theirs or sent.block_size not in self._atlas.block_sizes:
            return
        if len(theirs) >= PRUNE_FROM and len(theirs) >= MAX_OPEN:
            for each in [each for each, prediction in theirs.items() if prediction.node is None]:
                del theirs[each]
            if len(theirs) >= MAX_OPEN:
                return
        prediction = self._predictions.foreign(
            sent.endpoint,
            keys,
            block_size=sent.block_size,
            lookahead=sent.lookahead,
            now=self._clock(),
            ttl_s=sent.ttl_s,
            wait_s=sent.wait_s,
        )
        if prediction is not None:
            theirs[number] = prediction


def _sent(waiting: _Waiting, now: float) -> Sent:
    prediction, ttl_s, wait_s = waiting.prediction, 0.0, 0.0
    if prediction is not None and prediction.node is not None:
        wait_s = min(max(0.0, prediction.waits_until - now), LONGEST_S)
        left_s = prediction.ttl_s if wait_s else prediction.expires_at - now
        ttl_s = float(
            min(max(0.0, left_s), LONGEST_S)
        )  # a configured one is a `Duration`, which does not encode
    keys = waiting.keys[:MAX_KEYS].tobytes()
    return Sent(
        waiting.number, waiting.endpoint, waiting.block_size, waiting.lookahead, keys, ttl_s, wait_s
    )  # fmt: skip


def _payloads(changes: Changes) -> Iterator[bytes]:
    """Encode changes, with as many prompts a payload as it may hold."""
    sent, n_bytes = list[Sent](), 0
    for each in changes.sent:
        if sent and n_bytes + each.n_bytes > MAX_PAYLOAD_BYTES - _ROOM:
            yield _ENCODE(Changes(sent))
            sent, n_bytes = [], 0
        sent.append(each)
        n_bytes += each.n_bytes
    begun, withdrawn = changes.begun, changes.withdrawn
    while len(begun) + len(withdrawn) > MAX_NUMBERS:
        yield _ENCODE(Changes([], begun[:MAX_NUMBERS], []))
        begun = begun[MAX_NUMBERS:]
        if not begun:
            yield _ENCODE(Changes([], [], withdrawn[:MAX_NUMBERS]))
            withdrawn = withdrawn[MAX_NUMBERS:]
    yield _ENCODE(Changes(sent, begun, withdrawn))


def _decoded(payload: bytes) -> Changes:
    try:
        changes = _CHANGES.decode(payload)
    except UNREADABLE as error:
        raise MalformedError(str(error)) from None
    if any(len(each.keys) % 8 for each in changes.sent):
        raise MalformedError("the bytes of block keys are no multiple of 8")
    return changes


def _nothing() -> None:
    pass
