"""Traces in the format of the Mooncake project: one JSON object per line, with prefix-chained ids of 512-token blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_low

import msgspec

from ...routing.observers.recorder.trace_line import BLOCK_SIZE, MooncakeLine, encode_line
from ..errors import TraceError
from ..limits import MAX_SPAN_S, MAX_TOKENS
from .trace import Assumed, Trace, TraceRequest

ASSUMED_OUTPUT = 256
"""Output length if no line of a trace has one."""


MAX_TIMESTAMP_MS = 2.0**53
"""Beyond, a double does not resolve milliseconds; the time since 1970 is far below."""

_decode = msgspec.json.Decoder(MooncakeLine).decode


def read_trace(file: Path, *, limit: int | None = None) -> Trace:
    """Read the trace in a file.

    Unknown output lengths are set to the median of the known ones, or to `ASSUMED_OUTPUT` if none is known.

    Args:
        file: path of a `.jsonl`.
        limit: maximum number of requests.
    Raises:
        TraceError: the file cannot be read, or a line is not a valid request.
    """
    requests: list[TraceRequest] = []
    places: list[int] = []
    known: list[int] = []
    unknown: set[int] = set()
    block_size = BLOCK_SIZE
    for number, line in _lines(file):
        if limit is not None and len(requests) == limit:
            break
        if not requests and line.block_size is not None:
            block_size = line.block_size
        _check(file, number, line, block_size, n_before=len(requests))
        if line.output_length is None:
            unknown.add(len(requests))
        else:
            known.append(line.output_length)
        requests.append(_request(line, block_size))
        places.append(number)
    if not requests:
        raise TraceError(f"{file}: contains no request")
    assumed = max(1, median_low(known)) if known else ASSUMED_OUTPUT
    for number in unknown:
        requests[number] = replace(requests[number], n_output=assumed)
    _check_span(file, requests, places)
    if all(request.after is None for request in requests):
        requests.sort(key=lambda request: request.at_s)
    return Trace(file.stem, block_size, requests, assumed=Assumed(len(unknown), assumed) if unknown else None)


def write_trace(trace: Trace, file: Path) -> None:
    """Write a trace to a file that `read_trace` can read."""
    with file.open("wb") as out:
        for number, request in enumerate(trace.requests):
            line = MooncakeLine(
                timestamp=round(request.at_s * 1000, 3),
                input_length=request.n_prompt,
                output_length=request.n_output,
                hash_ids=request.ids,
                session=request.session,
                after=request.after,
                block_size=trace.block_size if number == 0 and trace.block_size != BLOCK_SIZE else None,
            )
            out.write(encode_line(line))


def _lines(file: Path) -> Iterator[tuple[int, MooncakeLine]]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield number, _decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise TraceError(f"{file}:{number}: {error}") from error
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror}") from error


def _check_span(file: Path, requests: Sequence[TraceRequest], places: Sequence[int]) -> None:
    first_s = min((each.at_s for each in requests if each.after is None), default=0.0)
    for place, each in zip(places, requests, strict=True):
        begin, span_s = "the first request", each.at_s - first_s
        if each.after is not None:
            begin, span_s = "the request it waits for", each.at_s
        if span_s > MAX_SPAN_S:
            raise TraceError(
                f"{file}:{place}: comes {span_s / 86400:.0f} days after {begin}, want at most {MAX_SPAN_S / 86400:.0f}; "
                "timestamp is in milliseconds"
            )


def _check(file: Path, number: int, line: MooncakeLine, block_size: int, *, n_before: int) -> None:
    n_ids = -(-line.input_length // block_size) if block_size > 0 else 0
    if line.input_length < 1 or block_size < 1:
        message = (
            f"found input_length {line.input_length} in blocks of {block_size} tokens, want 1 or more of each"
        )
    elif block_size > MAX_TOKENS or line.input_length + (line.output_length or 0) > MAX_TOKENS:
        message = (
            f"found input_length {line.input_length} and output_length {line.output_length} in blocks of {block_size} "
            f"tokens, want at most {MAX_TOKENS} tokens of each and together"
        )
    elif abs(line.timestamp) > MAX_TIMESTAMP_MS:
        message = f"found timestamp {line.timestamp:g}, want milliseconds of at most {MAX_TIMESTAMP_MS:g}"
    elif line.output_length is not None and line.output_length < 0:
        message = f"found output_length {line.output_length}, want 0 or more"
    elif len(line.hash_ids) < n_ids:
        message = f"found {len(line.hash_ids)} hash_ids, want {n_ids} for {line.input_length} tokens"
    elif any(not 0 <= key < 1 << 64 for key in line.hash_ids):
        message = "found a hash_id outside 0 .. 2**64 - 1"
    elif line.after is not None and not 0 <= line.after < n_before:
        message = f"found after {line.after}, want the number of an earlier request"
    else:
        return
    raise TraceError(f"{file}:{number}: {message}")


def _request(line: MooncakeLine, block_size: int) -> TraceRequest:
    """Convert a line to a request; an output of 0 tokens counts as 1, since an engine always generates one.

    A request without session gets the block id after the first 512 tokens, since many conversations begin alike.
    """
    ids = line.hash_ids
    telling = min(max(1, BLOCK_SIZE // block_size), len(ids) - 1)
    return TraceRequest(
        at_s=line.timestamp / 1000,
        n_prompt=line.input_length,
        n_output=max(1, line.output_length or 0),
        ids=ids,
        session=line.session or f"{ids[telling]}",
        after=line.after,
    )
