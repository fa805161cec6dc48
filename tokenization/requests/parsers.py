"""Parsers by the reference's names: which APIs clients may use, and whether their bodies are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto

from ..errors import BodyFormatError
from ..model import NoPrefixReason, NoPrompt, ParsedRequest
from . import vertex_ai, vllm_grpc
from .cost import MAX_COST, decoding_cost, is_light
from .request import generates, parse_body

PASSTHROUGH = "passthrough-parser"

_OPENAI = (
    "/chat/completions", "/chat/completions/batch", "/completions", "/embeddings", "/responses", "/conversations",
    "/images/generations", "/chat/completions/render", "/completions/render",
)  # fmt: skip

PARSERS: Mapping[str, tuple[str, ...]] = {
    "openai-parser": _OPENAI,
    "anthropic-parser": ("/messages", "/messages/count_tokens"),
    "vllmhttp-parser": ("/inference/v1/generate", *_OPENAI),
    "sglanghttp-parser": ("/generate",),
    "vllmgrpc-parser": (),
    "vertexai-parser": (),
    PASSTHROUGH: (),
}
"""Type -> ends of the paths whose bodies it reads. Those of gRPC have whole services; `passthrough-parser` takes what is left.

Source: asked of llm-d-router. There, `vllmhttp-parser` refuses the paths of OpenAI's API, though its documentation has it
read them; and the other methods of a gRPC service, such as Abort, get 400.
"""

_SERVICES: Mapping[str, str] = {"vllmgrpc-parser": vllm_grpc.SERVICE, "vertexai-parser": vertex_ai.SERVICE}
"""Type -> what the paths of its gRPC service contain."""

LIGHT_MESSAGE_BYTES = 512 * 1024
"""A gRPC message up to this length is light: its ids are counted and unpacked in 2 ms."""

MAX_SHOWN_CHARS = 256
"""Most characters of a path that a client is shown again."""

_VLLM = tuple(vllm_grpc.SERVICE + method for method in vllm_grpc.METHODS)
_VERTEX = tuple(vertex_ai.SERVICE + method for method in vertex_ai.METHODS)


class Form(Enum):
    """What a body is read as. WRAPPED: JSON inside of a gRPC message; REFUSED: no parser takes its path."""

    JSON = auto()
    MESSAGE = auto()
    WRAPPED = auto()
    UNREAD = auto()
    REFUSED = auto()


class BodyParser:
    """Reads request bodies by their path, of the APIs that clients may use.

    Args:
        types: of the parsers; empty for every known API, and any other path unread.
        max_cost: most token ids of a gRPC message; one with more has no prompt.

    Attributes:
        max_cost: as above.
    """

    def __init__(self, types: Collection[str] = (), *, max_cost: int = MAX_COST) -> None:
        self.max_cost = max_cost
        self._takes_all = not types
        self._takes_rest = PASSTHROUGH in types
        self._suffixes = tuple(suffix for each in types for suffix in PARSERS[each])
        self._services = tuple(_SERVICES[each] for each in types if each in _SERVICES)

    def form(self, path: str) -> Form:
        """Return how a body with this path is read."""
        if self._takes_all and vllm_grpc.SERVICE not in path and vertex_ai.SERVICE not in path:
            return Form.JSON  # as nearly all are
        clean = _clean(path)
        if self._takes_all or any(service in clean for service in self._services):
            if clean.endswith(_VLLM):
                return Form.MESSAGE
            if clean.endswith(_VERTEX):
                return Form.WRAPPED
            return Form.JSON if self._takes_all else Form.UNREAD
        if clean.endswith(self._suffixes):
            return Form.JSON
        return Form.UNREAD if self._takes_rest else Form.REFUSED

    def parse(self, path: str, body: bytes) -> ParsedRequest:
        """Read a body.

        Raises:
            RequestError: it is refused.
        """
        match self.form(path):
            case Form.JSON:
                return parse_body(path, body)
            case Form.MESSAGE:
                method = next(each for each in vllm_grpc.METHODS if _clean(path).endswith(each))
                return vllm_grpc.vllm_request(method, body, self.max_cost)
            case Form.WRAPPED:
                return vertex_ai.vertex_request(_clean(path).rpartition("/")[2], body)
            case Form.UNREAD:
                return _UNREAD
            case Form.REFUSED:
                raise BodyFormatError(no_parser(path))

    def is_light(self, path: str, body: bytes) -> bool:
        """Return whether reading the body takes so little time that the event loop may do it."""
        if self.form(path) is Form.MESSAGE:
            return len(body) <= LIGHT_MESSAGE_BYTES
        return is_light(body)

    def cost(self, path: str, body: bytes) -> int:
        """Return what decoding a body costs, 0 if `parse` limits that itself, or reads no prompt. See `requests.cost`."""
        form = self.form(path)
        is_decoded = form is Form.WRAPPED or (form is Form.JSON and generates(path))
        return decoding_cost(body) if is_decoded else 0


_UNREAD = ParsedRequest(
    "", NoPrompt(NoPrefixReason.UNREAD, "requestHandler.parsers has such bodies routed unread")
)


def _clean(path: str) -> str:
    return path.partition("?")[0].rstrip("/")


def no_parser(path: str) -> str:
    """Return the message for a client whose path no parser takes, in the reference's wording."""
    return f"no parser registered matching path suffix for: {path.partition('?')[0][:MAX_SHOWN_CHARS]}"
