"""Token counts of engines that speak gRPC, read out of the messages of a response as they pass.

Known messages: GenerateResponse and EmbedResponse of vLLM, and JSON bodies inside of an HttpBody, as Vertex AI sends them.
"""

from __future__ import annotations

from ...routing.outcome import Usage, UsageGap
from ...tokenization.errors import MessageFormatError, MessageTooComplexError
from ...tokenization.requests.grpc_frame import PREFIX_BYTES
from ...tokenization.requests.protobuf import FieldReader
from .passing import Reading, Report
from .usage import FREE_LINE_BYTES, MAX_COUNT, MAX_HELD_BYTES, Budget, json_usage

MAX_READ = 256
"""Most messages of one piece of the body that are read, in some ten milliseconds."""

MAX_MESSAGES = 4096
"""Most messages in one piece; with more the rest of the body is not read."""

MAX_FIELDS = 64
"""Most fields of a message that is read; real ones have a dozen."""

_CHUNK, _COMPLETE = 1, 2
_HTTP_BODY_DATA = 2
_EMBED_PROMPT_TOKENS = 2
_COUNTS = {_CHUNK: (2, 3, 4), _COMPLETE: (3, 4, 5)}
"""Message -> fields of its prompt, completion and cached tokens."""

_NOT_READ = (MessageFormatError, MessageTooComplexError)


class GrpcMessages:
    """Messages, cut anywhere. Counts of a later one replace those of an earlier one.

    Args:
        budget: accounts for held bytes.

    Attributes:
        n_events: messages with tokens as they are generated.
        passes: whether a passage may read the rest.
    """

    passes = False

    def __init__(self, budget: Budget) -> None:
        self.n_events = 0
        self._budget = budget
        self._n_allowed = FREE_LINE_BYTES
        self._held = bytearray()
        self._n_skipped = 0
        """Bytes of a message that is too long, which are still to come."""
        self._n_messages = 0
        """Of the current piece."""
        self._is_lost = False
        self._usage: Usage | None = None
        self._gap = UsageGap.ABSENT

    def feed(self, chunk: bytes) -> None:
        """Read the next piece of the body."""
        if self._is_lost:
            return
        data = memoryview(chunk)
        self._n_messages = 0
        while data:
            if self._n_messages > MAX_MESSAGES:
                self._gap, self._is_lost = UsageGap.TOO_LONG, True
                self._held.clear()
                return
            if self._n_skipped:
                n_bytes = min(self._n_skipped, len(data))
                self._n_skipped -= n_bytes
                data = data[n_bytes:]
                continue
            n_wanted = self._n_wanted() - len(self._held)
            self._held += data[:n_wanted]
            data = data[n_wanted:]
            self._take()

    def reading(self) -> Reading:
        """Return where a passage goes on; see `passes`."""
        return Reading()

    def passed(self, report: Report) -> None:
        """Take note of what a passage has found; there is none."""

    def end(self) -> Usage | UsageGap:
        """Return the usage."""
        return self._usage or self._gap

    def _n_wanted(self) -> int:
        """Return the length of the message that begins the held bytes, with its prefix; of the prefix if that is not whole."""
        if len(self._held) < PREFIX_BYTES:
            return PREFIX_BYTES
        return PREFIX_BYTES + int.from_bytes(self._held[1:PREFIX_BYTES], "big")

    def _take(self) -> None:
        """Read the held bytes if they are a whole message; drop one that is too long."""
        n_wanted = self._n_wanted()
        if len(self._held) < PREFIX_BYTES or (len(self._held) < n_wanted and self._fits(n_wanted)):
            return
        self._n_messages += 1
        if len(self._held) == n_wanted:
            if self._n_messages > MAX_READ:
                self._gap = UsageGap.TOO_LONG
            elif self._held[0]:
                self._gap = UsageGap.ENCODED
            else:
                self._read(memoryview(bytes(self._held))[PREFIX_BYTES:])
        else:
            self._n_skipped = n_wanted - len(self._held)
        self._held.clear()

    def _fits(self, n_bytes: int) -> bool:
        """Return whether a message of that length may be held until it is whole."""
        if n_bytes <= self._n_allowed:
            return True
        if n_bytes > MAX_HELD_BYTES:
            self._gap = UsageGap.TOO_LONG
            return False
        if not self._budget.hold(n_bytes - self._n_allowed):
            self._gap = UsageGap.OVERLOAD
            return False
        self._n_allowed = n_bytes
        return True

    def _read(self, message: memoryview) -> None:
        try:
            found = self._counts(message)
        except _NOT_READ:
            self._gap = UsageGap.MALFORMED
            return
        if isinstance(found, UsageGap):
            self._gap = found
        elif found is not None:
            self._usage = found

    def _counts(self, message: memoryview) -> Usage | UsageGap | None:
        """Return the counts of a message, None if it has none."""
        fields = FieldReader(MAX_FIELDS).fields
        parts = dict(fields(message))
        if any(isinstance(value, int) for value in parts.values()):
            return _usage((parts.get(_EMBED_PROMPT_TOKENS), 0, None))
        data = parts.get(_HTTP_BODY_DATA)
        if isinstance(data, memoryview) and bytes(data[:1]) in (b"{", b"d"):
            return json_usage(bytes(data).removeprefix(b"data:"))
        for number in (_CHUNK, _COMPLETE):
            part = parts.get(number)
            if isinstance(part, memoryview):
                self.n_events += number == _CHUNK
                counts = dict(fields(part))
                return _usage(tuple(counts.get(each, 0) for each in _COUNTS[number]))
        return None


def _usage(counts: tuple[object, object, object] | tuple[object, ...]) -> Usage | None:
    """Return the usage of prompt, completion and cached tokens; None if both of the first are 0, as in early messages."""
    prompt, completion, cached = (
        each if isinstance(each, int) and each <= MAX_COUNT else None for each in counts
    )
    return Usage(prompt, cached, completion) if prompt or completion else None
