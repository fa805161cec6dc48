"""Token counts of engines that speak gRPC, read out of the messages of a response as they pass.

Known messages: GenerateResponse and EmbedResponse of vLLM, and JSON bodies inside of an HttpBody, as Vertex AI sends them.
"""

from __future__ import annotations

from dataclasses import replace

from ...routing.outcome import Usage, UsageGap
from ...tokenization.errors import MessageFormatError, MessageTooComplexError
from ...tokenization.requests.grpc_frame import PREFIX_BYTES
from ...tokenization.requests.protobuf import FieldReader, n_varints
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
_TOKEN_IDS = 1
_COUNTS = {_CHUNK: (2, 3, 4), _COMPLETE: (3, 4, 5)}
"""Message -> fields of its prompt, completion and cached tokens."""

_NOT_READ = (MessageFormatError, MessageTooComplexError)


class GrpcMessages:
    """Messages, cut anywhere. Counts of a later one replace those of an earlier one, but for generated tokens, which add up.

    A stream has messages with the tokens that are new, and one at the end of each choice, which repeats the last of them, or has
    them all. Otherwise there is one message with all tokens of each choice.
    Source: smg_grpc_servicer.vllm, the service of `vllm serve --grpc`.

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
        self._n_output = {_CHUNK: 0, _COMPLETE: 0}
        """Tokens generated so far, by kind of message."""
        self._is_partial = False
        """Whether a message was not read."""
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
                self._leave_out(UsageGap.TOO_LONG)
                self._is_lost = True
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
                self._leave_out(UsageGap.TOO_LONG)
            elif self._held[0]:
                self._leave_out(UsageGap.ENCODED)
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
            self._leave_out(UsageGap.TOO_LONG)
            return False
        if not self._budget.hold(n_bytes - self._n_allowed):
            self._leave_out(UsageGap.OVERLOAD)
            return False
        self._n_allowed = n_bytes
        return True

    def _leave_out(self, why: UsageGap) -> None:
        """Take note of a message that is not read."""
        self._gap, self._is_partial = why, True
        if self._usage is not None:
            self._usage = replace(self._usage, output_tokens=None)

    def _read(self, message: memoryview) -> None:
        try:
            found = self._counts(message)
        except _NOT_READ:
            self._leave_out(UsageGap.MALFORMED)
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
            n_prompt = _count(parts.get(_EMBED_PROMPT_TOKENS))
            return Usage(n_prompt, None, 0) if n_prompt else None
        data = parts.get(_HTTP_BODY_DATA)
        if isinstance(data, memoryview) and bytes(data[:1]) in (b"{", b"d"):
            return json_usage(bytes(data).removeprefix(b"data:"))
        for number in (_CHUNK, _COMPLETE):
            part = parts.get(number)
            if isinstance(part, memoryview):
                return self._generated(number, dict(fields(part)))
        return None

    def _generated(self, number: int, counts: dict[int, int | memoryview]) -> Usage | None:
        """Add the tokens of a message with these fields, and return the counts; None if it has none, as early messages."""
        prompt, n_tokens, cached = (_count(counts.get(each, 0)) for each in _COUNTS[number])
        if number == _CHUNK:
            self.n_events += 1
            ids = counts.get(_TOKEN_IDS)
            n_tokens = n_tokens and (n_varints(ids) if isinstance(ids, memoryview) else n_tokens)
        self._n_output[number] += n_tokens or 0
        n_output = None if self._is_partial else min(max(self._n_output.values()), MAX_COUNT)
        return Usage(prompt, cached, n_output) if prompt or n_tokens else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value <= MAX_COUNT else None
