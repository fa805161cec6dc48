"""Recorded coding agents in the Weka format, as SemiAnalysis publishes them: conversations with nested sub-agents.

One JSON object per conversation: `id`, `block_size`, and `requests` in their order. A request has `t` (seconds since the
conversation began), `type` (`n` or `s`, streamed), `model`, `in` and `out` (tokens), `hash_ids` (one per block of the prompt,
only meaningful within the conversation) and optionally `api_time` and `think_time` (seconds of the server, and of the client
before). An entry of the type `subagent` has `requests` of its own; the next request of the conversation comes after it.

Source: aiperf `weka_trace_models.py` and inference-perf `weka_trace_replay_datagen.py`, which describe the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ..errors import TraceError
from .trace import Trace, TraceRequest


class WekaSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to replay of recorded agents.

    Attributes:
        path: a `.json` with one conversation, a `.jsonl` with one per line, or a folder of `.json`.
        sessions: conversations at the same time. Conversation n begins when conversation n - `sessions` has ended.
        max_pause_s: limit of the pauses between a response and the next request; people leave their agents overnight.
    """

    path: str
    sessions: Annotated[int, Meta(ge=1)] = 64
    max_pause_s: Annotated[float, Meta(ge=0)] = 60.0


class _Entry(msgspec.Struct, frozen=True):
    """A request, or a sub-agent with requests of its own."""

    t: float
    type: str
    model: str = ""
    n_prompt: int = msgspec.field(name="in", default=0)
    n_output: int = msgspec.field(name="out", default=0)
    hash_ids: tuple[int, ...] = ()
    api_time: float | None = None
    think_time: float | None = None
    requests: tuple[_Entry, ...] = ()


class _Conversation(msgspec.Struct, frozen=True):
    id: str
    block_size: Annotated[int, Meta(ge=1)]
    requests: tuple[_Entry, ...]


_decode = msgspec.json.Decoder(_Conversation).decode


def weka_trace(spec: WekaSpec) -> Trace:
    """Read recorded agents.

    Each request waits for the one that ended last before it in the recording: the previous one of its chain, or the last one
    of a sub-agent. Blocks are shared only within a conversation and a model.

    Raises:
        TraceError: a file cannot be read, or is not such a conversation; or their blocks differ in size.
    Cost: O(blocks).
    """
    made = _Made(max_pause_s=spec.max_pause_s)
    ends: list[int | None] = []
    block_size: int | None = None
    for source, conversation in _conversations(Path(spec.path)):
        if block_size not in (None, conversation.block_size):
            raise TraceError(
                f"{source}: found block_size {conversation.block_size}, {block_size} in files before it"
            )
        block_size = conversation.block_size
        lane = ends[-spec.sessions] if len(ends) >= spec.sessions else None
        made.begin(conversation)
        last = made.chain(
            conversation.requests, before=None if lane is None else _Ended(lane, 0.0), offset=0.0
        )
        ends.append(lane if last is None else last.number)
    if block_size is None or not made.requests:
        raise TraceError(f"{spec.path}: contains no request")
    return Trace(Path(spec.path).stem, block_size, made.requests)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A request by its number in the trace, and when it ended in the recording."""

    number: int
    at_s: float


@dataclass(slots=True)
class _Made:
    """The requests so far, and the block ids of the present conversation."""

    max_pause_s: float
    requests: list[TraceRequest] = field(default_factory=list[TraceRequest])
    _session: str = ""
    _block_size: int = 1
    _ids: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    _n_ids: int = 0

    def begin(self, conversation: _Conversation) -> None:
        self._session, self._block_size = conversation.id, conversation.block_size
        self._ids = {}

    def chain(self, entries: Sequence[_Entry], *, before: _Ended | None, offset: float) -> _Ended | None:
        """Add requests that follow each other, and return the one that ended last.

        Args:
            entries: requests and sub-agents; sub-agents between two requests run at the same time.
            before: request for which the first one waits, None if there is none.
            offset: seconds to add to the recorded times.
        """
        last, helpers = before, list[_Ended]()
        is_first = True
        for entry in entries:
            if entry.requests:
                begins = entry.requests[0].t
                shift = offset + (entry.t if begins < entry.t else 0.0)
                helper = self.chain(entry.requests, before=last, offset=shift)
                if helper is not None and helper != last:
                    helpers.append(helper)
            elif entry.n_prompt > 0:
                last = self._add(entry, _last_of(helpers, last), at_s=offset + entry.t, is_first=is_first)
                is_first, helpers = False, []
        return _last_of(helpers, last)

    def _add(self, entry: _Entry, waits_for: _Ended | None, *, at_s: float, is_first: bool) -> _Ended:
        if waits_for is None:
            pause_s = 0.0
        elif entry.think_time is not None and not is_first:
            pause_s = entry.think_time
        else:
            pause_s = at_s - waits_for.at_s
        n_ids = -(-entry.n_prompt // self._block_size)
        ids = [self._id(entry.model, each) for each in entry.hash_ids[:n_ids]]
        while len(ids) < n_ids:
            ids.append(self._new_id())
        self.requests.append(
            TraceRequest(
                at_s=min(max(0.0, pause_s), self.max_pause_s),
                n_prompt=entry.n_prompt,
                n_output=max(1, entry.n_output),
                ids=tuple(ids),
                session=self._session,
                after=None if waits_for is None else waits_for.number,
            )
        )
        return _Ended(len(self.requests) - 1, at_s + (entry.api_time or 0.0))

    def _id(self, model: str, local: int) -> int:
        key = model, local
        if key not in self._ids:
            self._ids[key] = self._new_id()
        return self._ids[key]

    def _new_id(self) -> int:
        self._n_ids += 1
        return self._n_ids - 1


def _conversations(path: Path) -> Iterator[tuple[str, _Conversation]]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    for file in files:
        try:
            texts = file.read_bytes().splitlines() if file.suffix == ".jsonl" else [file.read_bytes()]
        except OSError as error:
            raise TraceError(f"{file}: {error.strerror}") from error
        for number, text in enumerate(texts, start=1):
            source = f"{file}:{number}" if file.suffix == ".jsonl" else f"{file}"
            if text.strip():
                try:
                    yield source, _decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise TraceError(f"{source}: {error}") from error


def _last_of(helpers: Sequence[_Ended], last: _Ended | None) -> _Ended | None:
    """Return which of these ends last, None if there are none."""
    ended = helpers if last is None else [*helpers, last]
    return max(ended, key=lambda each: each.at_s) if ended else None
