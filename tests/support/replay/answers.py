"""Answers of a picker in the form of the recordings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from google.protobuf.struct_pb2 import Value

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.replay.messages import Sent
from support.replay.recordings import Json

DESTINATION = "x-gateway-destination-endpoint"
SCORES = f"{DESTINATION}-scores"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def answers_of(received: Sequence[pb.ProcessingResponse | str], sent: Sent) -> list[Json]:
    """Return what was received, where a text tells how the stream ended.

    Beside the keys of the recordings, `removed` has the headers that the picker removes; scores are left in `dynamic_metadata`.
    """
    found: list[Json] = []
    for message in received:
        if isinstance(message, str):
            found.append({"stream": message})
            continue
        answer = _answer(message, sent)
        for kind in ("request_body", "response_body"):
            if kind in answer and found and kind in found[-1] and "pieces" in found[-1][kind]:
                found[-1][kind]["pieces"] += answer[kind].pop("pieces", [])
                found[-1][kind] |= answer[kind]
                if "dynamic_metadata" in answer:
                    found[-1]["dynamic_metadata"] = answer["dynamic_metadata"]
                break
        else:
            found.append(answer)
    for answer in found:
        for kind in ("request_body", "response_body"):
            if kind in answer and "pieces" in answer[kind]:
                _join(answer[kind], sent.body)
    return found


def _answer(message: pb.ProcessingResponse, sent: Sent) -> Json:
    kind = message.WhichOneof("response")
    assert kind is not None
    answer: Json = {kind: {}}
    match kind:
        case "request_headers" | "response_headers":
            common = getattr(message, kind).response
            answer[kind] = dict(_headers(common, sent)) | (
                {"clear_route_cache": True} if common.clear_route_cache else {}
            )
        case "request_body" | "response_body":
            common = getattr(message, kind).response
            if common.HasField("header_mutation") or common.clear_route_cache:
                answer[kind] = dict(_headers(common, sent))
            match common.body_mutation.WhichOneof("mutation"):
                case "streamed_response":
                    piece = common.body_mutation.streamed_response
                    answer[kind] |= {"pieces": [piece.body], "end_of_stream": piece.end_of_stream}
                case "body":
                    answer[kind]["new_body"] = common.body_mutation.body.decode(errors="replace")
                case _:
                    answer[kind]["body"] = "unchanged"
        case "immediate_response":
            immediate = message.immediate_response
            answer[kind] = {"status": immediate.status.code, "body": immediate.body.decode(errors="replace")}
            if immediate.headers.set_headers:
                answer[kind]["headers"] = {"set": _set(immediate.headers)}
        case _:
            pass
    if message.HasField("dynamic_metadata"):
        answer["dynamic_metadata"] = _plain(Value(struct_value=message.dynamic_metadata))
    return answer


def _headers(common: pb.CommonResponse, sent: Sent) -> Iterator[tuple[str, object]]:
    values = _set(common.header_mutation)
    given = {name.lower(): value for name, value in sent.headers.items()}
    changed = {name: value for name, value in values.items() if sent.headers.get(name) != value}
    if "x-request-id" not in given and _UUID.fullmatch(changed.get("x-request-id", "")):
        changed["x-request-id"] = "<uuid>"
    yield "set", changed
    if missing := sorted(name for name in sent.headers if name not in values):
        yield "not_echoed", missing
    if common.header_mutation.remove_headers:
        yield "removed", sorted(common.header_mutation.remove_headers)


def _set(mutation: pb.HeaderMutation) -> dict[str, str]:
    return {
        option.header.key: option.header.raw_value.decode(errors="replace") or option.header.value
        for option in mutation.set_headers
    }


def _plain(value: Value) -> object:
    """Return a value as JSON has it, numbers that JSON does not have included."""
    match value.WhichOneof("kind"):
        case "struct_value":
            return {name: _plain(each) for name, each in value.struct_value.fields.items()}
        case "list_value":
            return [_plain(each) for each in value.list_value.values]
        case "null_value" | None:
            return None
        case kind:
            found: object = getattr(value, kind)
            return found


def _join(part: Json, sent: bytes) -> None:
    pieces: list[bytes] = part.pop("pieces")
    body = b"".join(pieces)
    part["body"] = "as sent" if body == sent else body.decode(errors="replace")
    if len(pieces) > 1:
        part["chunks"] = [len(each) for each in pieces]
