from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from contextlib import closing

import pytest
from tokenizers import normalizers

from kvatlas.tokenization.encoding.encoding_pool import INLINE_CHARS, QUICK_CHARS, SLICE_CHARS, EncodingPool
from kvatlas.tokenization.encoding.segment_encoder import SegmentEncoder
from kvatlas.tokenization.errors import EncodeError, EncoderBusyError, EncodeTimeoutError
from support.tokenizer_families import CHATML, LLAMA3, QWEN2, byte_level, metaspace, template, token
from support.waiting import until

# With a token that includes blanks, the native encoder supports no text, so long texts take time.
STRIPS = [*CHATML, token("<mask>", lstrip=True)]
TOKENIZER = byte_level(LLAMA3, added=STRIPS, frame=template("<|im_start|> $A"))
LONG = "".join(f"line {number} of the long text\n" for number in range(4500))
"""About 120,000 characters."""


@pytest.fixture
def encoder() -> SegmentEncoder:
    return SegmentEncoder(TOKENIZER)


@pytest.fixture
def pool() -> Iterator[EncodingPool]:
    with closing(EncodingPool(timeout_s=60)) as pool:
        yield pool


def whole(text: str) -> array[int]:
    return array("I", TOKENIZER.encode(text).ids)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("hello world", id="short"),
        pytest.param(LONG, id="long"),
        pytest.param(f"{LONG}<|im_start|>{LONG}", id="repeating"),
    ],
)
async def test_ids_are_those_of_the_whole_text(
    pool: EncodingPool, encoder: SegmentEncoder, text: str
) -> None:
    for _ in ("new", "known"):
        assert await pool.tokens(encoder, text, add_special_tokens=True) == whole(text)


async def test_event_loop_is_not_blocked_when_a_long_text_is_encoded(
    pool: EncodingPool, encoder: SegmentEncoder
) -> None:
    encoding = asyncio.ensure_future(pool.tokens(encoder, LONG * 5, add_special_tokens=True))
    n_turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        n_turns += 1
    # Encoding on the loop itself would leave only two turns.
    assert n_turns >= 10


async def test_short_new_text_is_encoded_on_the_event_loop_when_the_rest_is_known(
    encoder: SegmentEncoder,
) -> None:
    text = LONG + "x" * 100
    with closing(EncodingPool(timeout_s=60)) as pool:
        await pool.tokens(encoder, LONG, add_special_tokens=True)
    # A closed pool has no threads, so everything is encoded at once.
    assert await pool.tokens(encoder, text, add_special_tokens=True) == whole(text)
    with pytest.raises(RuntimeError, match="shutdown"):
        await pool.tokens(encoder, "y" * (INLINE_CHARS + 1), add_special_tokens=True)


async def test_text_that_needs_no_library_is_encoded_on_the_event_loop_when_it_is_not_very_long() -> None:
    tokenizer = byte_level(QWEN2, normalizer=normalizers.NFC())
    encoder = SegmentEncoder(tokenizer)
    assert encoder.is_native
    known, new = LONG[: QUICK_CHARS - 5000], "word " * 2000
    with closing(EncodingPool(timeout_s=60)) as pool:
        got = await pool.tokens(encoder, LONG, add_special_tokens=False)
    assert got == array("I", tokenizer.encode(LONG).ids)
    # A closed pool has no threads, so everything is encoded at once.
    for text in (known, new, f"{new}e\u0301{new}"):  # the last has a character that the library normalizes
        got = await pool.tokens(encoder, text, add_special_tokens=False)
        assert got == array("I", tokenizer.encode(text).ids)
    for text in (
        LONG.replace("line", "row"),
        "".join(f"e\u0301 {number} " for number in range(INLINE_CHARS)),
    ):
        with pytest.raises(RuntimeError, match="shutdown"):
            await pool.tokens(encoder, text, add_special_tokens=False)


async def test_timeout_error_is_raised_when_the_time_is_up_and_the_text_is_known_later(
    encoder: SegmentEncoder,
) -> None:
    with closing(EncodingPool(timeout_s=0)) as pool:
        with pytest.raises(EncodeTimeoutError, match="longer than 0 s"):
            await pool.tokens(encoder, LONG, add_special_tokens=True)
        await until(
            lambda: not encoder.draft(LONG, add_special_tokens=True).missing(), what="the ids in the cache"
        )
        assert await pool.tokens(encoder, LONG, add_special_tokens=True) == whole(LONG)
        assert pool.counters.timeouts == 1


async def test_text_is_encoded_once_when_several_requests_have_it(
    pool: EncodingPool, encoder: SegmentEncoder
) -> None:
    # The last one starts differently; from the special token on, it has the same segments as the others.
    texts = [f"<|im_start|>{LONG}", f"<|im_start|>{LONG}", f"{'another ' * 100}<|im_start|>{LONG}"]
    got = await asyncio.gather(*(pool.tokens(encoder, text, add_special_tokens=True) for text in texts))
    assert got == [whole(text) for text in texts]
    segments = {part for text in texts for part in encoder.draft(text, add_special_tokens=True).segments}
    once = [ids for ids in encoder.cache.find(list(segments)) if ids is not None]
    assert len(once) == len(segments)
    assert pool.counters.encoded_tokens == sum(map(len, once)) // 4


async def test_parts_of_a_long_text_are_known_before_all_of_it_is(encoder: SegmentEncoder) -> None:
    text = "".join(f"part {number}\n{LONG}" for number in range(10))
    with closing(EncodingPool(threads=1, timeout_s=0)) as pool, pytest.raises(EncodeTimeoutError):
        await pool.tokens(encoder, text, add_special_tokens=True)
    draft = encoder.draft(text, add_special_tokens=True)
    assert 0 < len(draft.missing()) < len(draft.segments)
    assert len(text) > 10 * SLICE_CHARS


async def test_busy_error_is_raised_when_too_much_text_waits(encoder: SegmentEncoder) -> None:
    with closing(EncodingPool(threads=1, timeout_s=60, queue_chars=1)) as pool:
        first = asyncio.ensure_future(pool.tokens(encoder, LONG, add_special_tokens=True))
        await asyncio.sleep(0)
        with pytest.raises(EncoderBusyError, match=r"1\d{5} characters wait"):
            await pool.tokens(encoder, "other " * 1000, add_special_tokens=True)
        # The same text needs no more work, and short ones no thread.
        assert await pool.tokens(encoder, LONG, add_special_tokens=True) == whole(LONG)
        assert await pool.tokens(encoder, "short", add_special_tokens=True) == whole("short")
        assert await first == whole(LONG)
        assert await pool.tokens(encoder, "other " * 1000, add_special_tokens=True) == whole("other " * 1000)
        assert pool.counters.refusals == 1


async def test_encode_error_is_raised_for_the_request_with_the_bad_text_alone(
    pool: EncodingPool, encoder: SegmentEncoder
) -> None:
    bad = asyncio.ensure_future(
        pool.tokens(encoder, f"{LONG}<|im_start|>{'a' * 300}\ud800", add_special_tokens=True)
    )
    await asyncio.sleep(0)
    good = await pool.tokens(encoder, f"{LONG}<|im_start|>", add_special_tokens=True)
    assert good == whole(f"{LONG}<|im_start|>")
    with pytest.raises(EncodeError):
        await bad


async def test_work_goes_on_when_the_request_is_cancelled(
    pool: EncodingPool, encoder: SegmentEncoder
) -> None:
    request = asyncio.ensure_future(pool.tokens(encoder, LONG, add_special_tokens=True))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    await until(
        lambda: not encoder.draft(LONG, add_special_tokens=True).missing(), what="the ids in the cache"
    )


async def test_work_of_another_tokenizer_is_not_taken_for_the_same(
    pool: EncodingPool, encoder: SegmentEncoder
) -> None:
    tokenizer = metaspace("first", split=False)
    other = SegmentEncoder(tokenizer)
    ours, theirs = (
        asyncio.ensure_future(pool.tokens(each, LONG, add_special_tokens=True)) for each in (encoder, other)
    )
    assert await ours == whole(LONG)
    assert await theirs == array("I", tokenizer.encode(LONG).ids)


async def test_special_tokens_are_added_to_the_request_that_wants_them_when_they_make_no_frame(
    pool: EncodingPool,
) -> None:
    tokenizer = byte_level(frame=template("<|im_start|> $A <|im_end|> $A"))
    odd = SegmentEncoder(tokenizer)
    flags = (True, False, True)
    got = await asyncio.gather(*(pool.tokens(odd, LONG, add_special_tokens=flag) for flag in flags))
    assert got == [array("I", tokenizer.encode(LONG, add_special_tokens=flag).ids) for flag in flags]
    assert await pool.tokens(odd, LONG, add_special_tokens=True) == got[0]


async def test_tokens_are_counted_by_where_they_came_from(
    pool: EncodingPool, encoder: SegmentEncoder
) -> None:
    n_tokens = len(whole(LONG)) - 1  # except for the token at the front
    await pool.tokens(encoder, LONG, add_special_tokens=True)
    first = (pool.counters.encoded_tokens, pool.counters.cached_tokens)
    await pool.tokens(encoder, LONG, add_special_tokens=True)
    await pool.tokens(encoder, "x", add_special_tokens=True)
    assert first == (n_tokens, 0)
    assert (pool.counters.encoded_tokens, pool.counters.cached_tokens) == (n_tokens + 1, n_tokens)
    assert 0 < pool.counters.encode_seconds < 60


async def test_waiting_work_is_dropped_when_the_pool_is_closed(encoder: SegmentEncoder) -> None:
    pool = EncodingPool(threads=1, timeout_s=60)
    requests = [
        asyncio.ensure_future(pool.tokens(encoder, f"{number} {LONG}", add_special_tokens=True))
        for number in range(5)
    ]
    await asyncio.sleep(0)
    pool.close()
    await asyncio.wait(requests)
    assert any(request.cancelled() for request in requests)
