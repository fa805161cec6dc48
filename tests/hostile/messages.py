"""gRPC messages, as a hostile client would write them: fields of every wire type, nested, long, cut, or not of the type that is meant."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from support.protobuf import content, frame, number, packed, varint


def body(rng: Random) -> bytes:
    """Return one message with gRPC's prefix, most of them broken in some way."""
    whole = frame(message(rng), flag=rng.choice((0, 0, 0, 0, 1, 255)))
    return rng.choice((_as_it_is, _as_it_is, _cut, _longer, _other_length))(rng, whole)


def message(rng: Random, depth: int = 3) -> bytes:
    """Return a message of random fields."""
    return b"".join(rng.choice(FIELDS)(rng, depth) for _ in range(rng.choice((0, 1, 3, 10))))


def _number(rng: Random, _: int) -> bytes:
    return number(rng.choice((1, 2, 5, 27, 2**29 - 1)), rng.choice((0, 1, 2**32, 2**64 - 1, 2**80)))


def _bytes(rng: Random, _: int) -> bytes:
    return content(rng.randrange(1, 9), rng.randbytes(rng.choice((0, 1, 50))) * rng.choice((1, 2000)))


def _ids(rng: Random, _: int) -> bytes:
    ids = [rng.choice((0, 127, 128, 2**32 - 1, 2**32)) for _ in range(rng.choice((0, 1, 500)))]
    return content(2, rng.choice((packed(2, *ids), number(2, 7) * 3000, content(2, b"\xff" * 20_000))))


def _nested(rng: Random, depth: int) -> bytes:
    return content(rng.randrange(1, 9), message(rng, depth - 1)) if depth else b""


def _fixed(rng: Random, _: int) -> bytes:
    return varint(rng.randrange(1, 9) << 3 | rng.choice((1, 3, 4, 5, 6, 7))) + rng.randbytes(
        rng.choice((0, 4, 8))
    )


def _many(rng: Random, _: int) -> bytes:
    return number(rng.randrange(1, 9), 0) * rng.choice((100, 5000))


FIELDS: tuple[Callable[[Random, int], bytes], ...] = (_number, _bytes, _ids, _nested, _fixed, _many)


def _as_it_is(_: Random, whole: bytes) -> bytes:
    return whole


def _cut(rng: Random, whole: bytes) -> bytes:
    return whole[: rng.randrange(len(whole))]


def _longer(rng: Random, whole: bytes) -> bytes:
    return whole + rng.randbytes(20)


def _other_length(rng: Random, whole: bytes) -> bytes:
    return whole[:1] + rng.choice((0, 1, 2**32 - 1)).to_bytes(4, "big") + whole[5:]
