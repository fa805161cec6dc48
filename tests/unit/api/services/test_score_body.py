"""Requests of `Score`: what is read without an object for each number is what the library reads."""

from __future__ import annotations

from array import array

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.client import scorer_pb2 as pb
from kvatlas.api.services.score_body import read_score

IDS = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 2**17), max_size=40)
KEYS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=40)
TEXTS = st.text(max_size=8)
REQUESTS = st.one_of(
    st.builds(pb.ScoreRequest, token_ids=st.builds(pb.TokenIds, ids=IDS)),
    st.builds(pb.ScoreRequest, keys=st.builds(pb.BlockKeys, keys=KEYS, block_size=st.integers(0, 64))),
    st.builds(pb.ScoreRequest, prompt=TEXTS),
    st.builds(pb.ScoreRequest, model=TEXTS, cache_salt=TEXTS),
)
CHUNKS = st.one_of(
    REQUESTS.map(pb.ScoreRequest.SerializeToString),
    st.sampled_from(
        [
            b"\x22\x00",  # no token ids
            b"\x22\x02\x08\x07",  # a token id that is not packed
            b"\x22\x04\x0a\x02\x07\x80",  # the last one is not whole
            b"\x22\x07\x0a\x05\xff\xff\xff\xff\x7f",  # more than 32 bits
            b"\x22\x06\x0a\x01\x05\x0a\x01\x06",  # two packed lists
            b"\x22\x05\x0a\x01\x05\x58\x01",  # a field that nobody knows
            b"\x22\x7f\x0a",  # a length past the end
            b"\x28\x01",  # keys as a number
            b"\x2d\x01\x02\x03\x04",  # four bytes
            b"\x80",
        ]
    ),
    st.binary(max_size=6),
)


def as_read(message: bytes) -> pb.ScoreRequest | None:
    """Return the request with its numbers in their place, None for an error."""
    try:
        body = read_score(message)
    except DecodeError:
        return None
    if body.numbers is not None:
        given = body.request.WhichOneof("input")
        if given == "token_ids":
            body.request.token_ids.ids.extend(body.numbers)
        elif given == "keys":
            body.request.keys.keys.extend(body.numbers)
    return body.request


def by_library(message: bytes) -> pb.ScoreRequest | None:
    try:
        return pb.ScoreRequest.FromString(message)
    except DecodeError:
        return None


@given(chunks=st.lists(CHUNKS, max_size=4))
def test_request_is_what_the_library_reads(chunks: list[bytes]) -> None:
    message = b"".join(chunks)
    assert as_read(message) == by_library(message)


@pytest.mark.parametrize("number", [0, 127, 128, 2**14, 2**21, 2**28, 2**32 - 1])
def test_token_ids_are_cut(number: int) -> None:
    ids = [number] * 9 + [1]
    message = pb.ScoreRequest(model="m", token_ids=pb.TokenIds(ids=ids), cache_salt="s").SerializeToString()
    body = read_score(message)
    assert body.numbers == array("I", ids)
    assert body.request == pb.ScoreRequest(model="m", token_ids=pb.TokenIds(), cache_salt="s")
    assert body.n_bytes == len(body.request.SerializeToString())


@pytest.mark.parametrize("key", [0, 2**49, 2**56 - 1, 2**56, 2**63, 2**64 - 1])
def test_keys_are_cut(key: int) -> None:
    keys = [key] * 9 + [1]
    body = read_score(pb.ScoreRequest(keys=pb.BlockKeys(keys=keys, block_size=16)).SerializeToString())
    assert body.numbers == array("Q", keys)
    assert body.request == pb.ScoreRequest(keys=pb.BlockKeys(block_size=16))


def test_message_of_many_fields_is_left_to_the_library() -> None:
    message = b"\x0a\x00" * 40 + pb.ScoreRequest(token_ids=pb.TokenIds(ids=[1])).SerializeToString()
    assert read_score(message).numbers is None
