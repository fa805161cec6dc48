"""Requests of vLLM's gRPC service `vllm.grpc.engine.VllmEngine`: Generate and Embed.

The messages name no model and no adapter: a server has one model.
Source: vllm_engine.proto of smg-grpc-proto, as vLLM 0.33.0 serves it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..encoding.byte_form import estimated_tokens
from ..errors import BodyFormatError, MessageFormatError, MessageTooComplexError
from ..model import AnyPrompt, NoPrefixReason, NoPrompt, ParsedRequest, TextPrompt, TokenPrompt
from .common import MAX_CHOICES, all_computed
from .cost import MAX_COST
from .grpc_frame import compressed, one_message
from .native import Features, Placeholder, media_spans
from .numbers import unpack_numbers
from .protobuf import Field, FieldReader, n_varints, text, varints

SERVICE = "/vllm.grpc.engine.VllmEngine/"
"""What the paths of its methods contain."""

METHODS = ("Generate", "Embed")
"""Methods that run the model."""

MAX_UNPACKED_IN_PYTHON = 100_000
"""Most ids read without the native part, in about 20 ms."""

_TOKENIZED, _TEXT, _SAMPLING, _STREAM, _MEDIA = 2, 3, 4, 5, 7
_UNPROCESSED_MEDIA, _MORE_MEDIA = 10, 11
_INPUT_IDS = 2
_N_CHOICES, _PROMPT_LOGPROBS, _TRUNCATED_TO = 15, 23, 27
_PLACEHOLDERS, _HASHES = 5, 6
_OFFSET, _LENGTH = 1, 2
_NOT_TRUNCATED = 2**64 - 1
"""-1 as a varint."""

_MAX_ID = 2**32 - 1

AnyMedia: TypeAlias = NoPrompt | Features | None
"""Media of a prompt, None if it has none."""


def vllm_request(method: str, body: bytes, max_cost: int = MAX_COST) -> ParsedRequest:
    """Return the request of one message.

    Args:
        method: of the service, one of `METHODS`.
        body: the message with gRPC's prefix.
        max_cost: most token ids; a prompt with more is not read.

    Raises:
        BodyFormatError: no engine could read it.
    Cost: 2 ns per id, a copy of their bytes, and 1 µs for each further field.
    """
    try:
        message = one_message(body)
    except MessageFormatError as error:
        raise BodyFormatError(f"invalid or unsupported gRPC payload: {error}") from error
    if message is None:
        return compressed(body)
    try:
        return _read(method, message, max_cost)
    except MessageFormatError as error:
        raise BodyFormatError(f"unmarshaling {method}Request: {error}") from error
    except MessageTooComplexError as error:
        prompt = NoPrompt(NoPrefixReason.TOO_COMPLEX, str(error))
        return ParsedRequest("", prompt, n_estimated=estimated_tokens(len(message)))


class _Input:
    """The fields of a message that matter, as they are read."""

    def __init__(self) -> None:
        self.fields = FieldReader().fields
        self.ids: list[memoryview | int] | None = None
        """Packed runs of ids, and single ones."""
        self.text: str | None = None
        self.media: AnyMedia = None
        self.is_truncated = self.wants_probabilities = self.stream = False
        self.n_choices = 1

    def n_tokens(self) -> int:
        """Return the number of ids, or that of tokens that the text is estimated to have."""
        if self.ids is None:
            return estimated_tokens(len(self.text or ""))
        return _n_ids(self.ids)

    def take_tokenized(self, value: memoryview) -> None:
        """Take the ids of a prompt; a message may be sent in several parts."""
        found = [each for number, each in self.fields(value) if number == _INPUT_IDS]
        self.ids, self.text = [*(self.ids or ()), *found], None

    def take_text(self, value: memoryview) -> None:
        """Take a prompt's text, in place of ids that came before."""
        self.ids, self.text = None, text(value)

    def take_sampling(self, value: memoryview) -> None:
        """Take what changes the prompt, and the number of responses; the parameters may be sent in several parts."""
        for number, each in self.fields(value):
            if number == _TRUNCATED_TO:
                self.is_truncated = each != _NOT_TRUNCATED
            elif number == _PROMPT_LOGPROBS:
                self.wants_probabilities = True
            elif number == _N_CHOICES and isinstance(each, int):
                self.n_choices = each if 1 <= each <= MAX_CHOICES else 1

    def take_media(self, value: memoryview) -> None:
        """Take the places of media; those of another kind, or sent in several parts, come in a message of their own."""
        self.media = _both(self.media, _media(self.fields, value))

    def take_unprocessed(self, value: memoryview) -> None:  # noqa: ARG002 - what it says is not needed
        """Take media that the engine fetches."""
        self.media = NoPrompt(NoPrefixReason.MEDIA, "the engine inserts media into the token ids")


def _read(method: str, message: memoryview, max_cost: int) -> ParsedRequest:
    found = _Input()
    take = {_TOKENIZED: found.take_tokenized}
    if method == "Generate":
        take |= {_TEXT: found.take_text, _SAMPLING: found.take_sampling}
        take |= {_MEDIA: found.take_media, _MORE_MEDIA: found.take_media}
        take |= {_UNPROCESSED_MEDIA: found.take_unprocessed}
    for number, value in found.fields(message):
        if isinstance(value, int):
            found.stream = found.stream or (number == _STREAM and bool(value))
        elif number in take:
            take[number](value)
    prompt = _prompt(method, found, max_cost)
    n_estimated = len(prompt.tokens) if isinstance(prompt, TokenPrompt) else found.n_tokens()
    return ParsedRequest("", prompt, stream=found.stream, n_choices=found.n_choices, n_estimated=n_estimated)


def _prompt(method: str, found: _Input, max_cost: int) -> AnyPrompt:
    if found.ids is None and found.text is None:
        missing = "not supported request inputType"
        raise BodyFormatError(missing if method == "Generate" else "missing tokenized input in EmbedRequest")
    if found.is_truncated:
        return NoPrompt(NoPrefixReason.ALTERED_PROMPT, "the engine truncates the prompt")
    if found.wants_probabilities:
        return all_computed().prompt
    if isinstance(found.media, NoPrompt):
        return found.media
    if found.ids is None:
        if found.media is not None:
            return NoPrompt(NoPrefixReason.MEDIA, "the engine inserts media into the text")
        return TextPrompt(found.text or "", add_special_tokens=True)
    ids = _ids(found.ids, max_cost)
    if isinstance(ids, NoPrompt) or found.media is None:
        return ids if isinstance(ids, NoPrompt) else TokenPrompt(ids)
    spans = media_spans(found.media, len(ids))
    if spans is None:
        return NoPrompt(NoPrefixReason.MALFORMED, "places of media contradict each other or the token ids")
    return TokenPrompt(ids, spans)


def _ids(parts: list[memoryview | int], max_cost: int) -> array[int] | NoPrompt:
    n_ids = _n_ids(parts)
    if n_ids > max_cost:
        detail = f"the prompt has {n_ids} token ids, and tokenization.maxReadingCost is {max_cost}"
        return NoPrompt(NoPrefixReason.TOO_COMPLEX, detail)
    ids = array("I")
    for each in parts:
        if isinstance(each, int):
            ids.append(_checked(each))
            continue
        unpacked = unpack_numbers(bytes(each), "I")
        if unpacked is not None:
            ids += unpacked
        elif n_ids <= MAX_UNPACKED_IN_PYTHON:
            ids.extend(map(_checked, varints(each)))
        else:
            return NoPrompt(
                NoPrefixReason.TOO_COMPLEX, f"{n_ids} token ids take long without the native part"
            )
    return ids


def _n_ids(parts: list[memoryview | int]) -> int:
    return sum(1 if isinstance(each, int) else n_varints(each) for each in parts)


def _checked(number: int) -> int:
    if number > _MAX_ID:
        raise MessageFormatError("a token id has more than 32 bits")
    return number


def _media(fields: Callable[[memoryview], Iterator[Field]], value: memoryview) -> AnyMedia:
    """Return the places of media; a reason for having no prompt if they are not all known."""
    hashes: list[str] = []
    places: list[Placeholder] = []
    for number, each in fields(value):
        if isinstance(each, int):
            continue
        if number == _HASHES:
            hashes.append(text(each))
        elif number == _PLACEHOLDERS:
            place = dict(fields(each))
            offset, length = place.get(_OFFSET, 0), place.get(_LENGTH, 0)
            if not isinstance(offset, int) or not isinstance(length, int):
                raise MessageFormatError("the place of media is not a number")
            places.append(Placeholder(offset, length))
    if not places or len(places) != len(hashes):
        return NoPrompt(NoPrefixReason.MEDIA, "the media have no places or no hashes")
    return Features({"media": hashes}, {"media": places})


def _both(known: AnyMedia, more: AnyMedia) -> AnyMedia:
    """Return media together; a reason for having no prompt if either of them is one."""
    if not isinstance(known, Features) or not isinstance(more, Features):
        return more if known is None or isinstance(more, NoPrompt) else known
    hashes = known.mm_hashes["media"] + more.mm_hashes["media"]
    return Features(
        {"media": hashes}, {"media": known.mm_placeholders["media"] + more.mm_placeholders["media"]}
    )
