"""Requests of Vertex AI's gRPC service `PredictionService`: JSON bodies of OpenAI's APIs inside a message.

Source: google/cloud/aiplatform/v1beta1/prediction_service.proto, google/api/httpbody.proto; path by method as llm-d-router.
"""

from __future__ import annotations

from ..errors import BodyFormatError, MessageFormatError, MessageTooComplexError
from ..model import ParsedRequest
from .grpc_frame import compressed, one_message
from .protobuf import FieldReader
from .request import parse_body

SERVICE = "PredictionService/"
"""What the paths of its methods contain; versions of the API have different names before it."""

METHODS = ("ChatCompletions", "StreamRawPredict", "RawPredict")

_PATHS = {"ChatCompletions": "/v1/chat/completions"}
"""Method -> path of the API that its body belongs to; raw predictions have bodies of the responses API."""
_RAW_PATH = "/v1/responses"

_HTTP_BODY, _DATA = 2, 2


def vertex_request(method: str, body: bytes) -> ParsedRequest:
    """Return the request of one message.

    Raises:
        RequestError: no engine could read it; see `parse_body`.
    """
    data = json_of(method, body)
    if data is None:
        return compressed(body)
    return parse_body(_PATHS.get(method, _RAW_PATH), data)


def json_of(method: str, body: bytes) -> bytes | None:
    """Return the JSON body inside of a message, None if the message is compressed.

    Raises:
        BodyFormatError: there is none.
    """
    try:
        message = one_message(body)
    except MessageFormatError as error:
        raise BodyFormatError(f"invalid or unsupported gRPC payload: {error}") from error
    if message is None:
        return None
    try:
        found = _last(message, _HTTP_BODY)
        data = _last(found, _DATA) if found is not None else None
    except (MessageFormatError, MessageTooComplexError) as error:
        raise BodyFormatError(f"unmarshaling {method}Request: {error}") from error
    if found is None:
        raise BodyFormatError(f"{method}Request has no HttpBody")
    return bytes(data or b"")


def _last(message: memoryview, wanted: int) -> memoryview | None:
    found = None
    for number, value in FieldReader().fields(message):
        if number == wanted and not isinstance(value, int):
            found = value
    return found
