"""Loads that SGLang publishes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.errors import WireError
from kvatlas.fleet.advertised.load_stat import MAX_MESSAGE_BYTES, LoadStat, ServerLoad, decode_load
from kvatlas.scorers.core.model import Adapters, Load

SENT: list[object] = ["LoadStat", 3, 2, 500, 1000, 0, 120, 620, 64, 90_000, 3_000_000]


def frames(sent: object) -> list[bytes]:
    return [b"load", bytes(8), msgspec.msgpack.encode(sent)]


def test_fields_are_read_in_order() -> None:
    wanted = LoadStat(3, 2, 500, 1000, 0, 120, 620, 64, 90_000, 3_000_000)
    assert decode_load(frames(SENT)) == decode_load(frames([*SENT, "a later field"])) == wanted


def test_early_versions_send_fewer_fields() -> None:
    assert decode_load(frames(SENT[:5])) == LoadStat(3, 2, 500, 1000)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        pytest.param([b"load", b""], "bad_load_frames", id="two_parts"),
        pytest.param([b"load", b"", bytes(MAX_MESSAGE_BYTES + 1)], "bad_load_frames", id="too_long"),
        pytest.param([b"load", b"", b"\xc1"], "bad_load", id="no_msgpack"),
        pytest.param(frames(["Other", *SENT[1:]]), "bad_load", id="other_tag"),
        pytest.param(frames(["LoadStat", -1, 0, 0, 0]), "bad_load", id="negative"),
        pytest.param(frames(["LoadStat", 2**60, 0, 0, 0]), "bad_load", id="absurd"),
    ],
)
def test_messages_that_are_no_load_are_refused(parts: list[bytes], reason: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_load(parts)
    assert caught.value.reason == reason


@given(
    st.binary(max_size=100)
    | st.lists(st.integers() | st.floats() | st.text(), max_size=12).map(
        lambda each: msgspec.msgpack.encode(
            ["LoadStat", *(e for e in each if not isinstance(e, int) or abs(e) < 2**63)]
        )
    )
)
def test_any_message_is_read_or_refused(payload: bytes) -> None:
    try:
        stat = decode_load([b"load", bytes(8), payload])
    except WireError:
        return
    server = ServerLoad(1)
    load = server.take(stat, now=1.0, before=None)
    assert load is None or 0 <= load.kv_utilization <= 1
    assert server.prefill_tokens_per_s is None or 1 <= server.prefill_tokens_per_s <= 1e7


def test_load_of_a_server_is_that_of_its_ranks_and_as_old_as_the_oldest() -> None:
    server = ServerLoad(2)
    before = Load(9, 9, 0.9, 0.0, adapters=Adapters(active=frozenset({"a"})))
    assert server.take(LoadStat(3, 2, 500, 1000, 0), now=10.0, before=before) is None
    assert server.take(LoadStat(0, 0, 0, 0, 7), now=11.0, before=before) is None  # no such rank
    assert server.take(LoadStat(1, 0, 100, 1000, 1), now=12.0, before=before) == Load(
        waiting=2,
        running=4,
        kv_utilization=0.3,
        updated_at=10.0,
        adapters=before.adapters,
        gpu_tokens=2000,
    )


def test_prefill_speed_is_told_after_some_work() -> None:
    server = ServerLoad(1)
    server.take(LoadStat(0, 0, 0, 1, prefill_tokens=50, prefill_busy_us=2_000), now=1.0, before=None)
    assert server.prefill_tokens_per_s is None
    server.take(LoadStat(0, 0, 0, 1, prefill_tokens=90_000, prefill_busy_us=3e6), now=2.0, before=None)
    assert server.prefill_tokens_per_s == 30_000


@pytest.mark.parametrize(
    ("busy_us", "speed"), [(1e5, 1e7), (1e12, 1.0), (1.1e12, None), (1e300, None), (float("inf"), None)]
)
def test_prefill_speed_is_a_believable_one(busy_us: float, speed: float | None) -> None:
    server = ServerLoad(1)
    server.take(LoadStat(0, 0, 0, 1, prefill_tokens=10**6, prefill_busy_us=busy_us), now=1.0, before=None)
    assert server.prefill_tokens_per_s == speed
