from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from contextlib import closing

import pytest
from tokenizers import Tokenizer, normalizers

from kvatlas.tokenization.encoding.encoding_pool import (
    DRAFT_CHARS,
    INLINE_CHARS,
    QUICK_CHARS,
    EncodingPool,
)
from kvatlas.tokenization.encoding.segment_encoder import EncodingLimits, SegmentEncoder
from kvatlas.tokenization.encoding.slices import SLICE_CHARS
from kvatlas.tokenization.errors import (
    EncodeError,
    EncoderBusyError,
    EncodeTimeoutError,
    TextTooLongError,
)
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


async def test_text_is_dropped_when_the_time_is_up_except_for_what_a_thread_has_begun(
    encoder: SegmentEncoder,
) -> None:
    with closing(EncodingPool(threads=1, timeout_s=0)) as pool:
        with pytest.raises(EncodeTimeoutError, match="longer than 0 s"):
            await pool.tokens(encoder, LONG, add_special_tokens=True)
        n_slices = len(LONG) // SLICE_CHARS + 1
        assert n_slices - 1 <= pool.dropped_slices <= n_slices
        assert pool.queued_chars <= SLICE_CHARS + 2 * 2048
        await until(lambda: not pool.queued_chars, what="the end of the slice that was begun")
        assert pool.counters.timeouts == 1
    known = encoder.draft(LONG, add_special_tokens=True)
    assert sum(map(len, known.missing())) >= len(LONG) - SLICE_CHARS - 2048


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


async def test_longest_prompt_gives_way_when_a_shorter_one_does_not_fit(encoder: SegmentEncoder) -> None:
    with closing(EncodingPool(threads=1, timeout_s=60, queue_chars=len(LONG) + 30_000)) as pool:
        texts = [LONG, LONG[:28_000].replace("line", "row"), LONG[:18_000].replace("line", "column")]
        long, middle, short = (
            asyncio.ensure_future(pool.tokens(encoder, text, add_special_tokens=True)) for text in texts
        )
        with pytest.raises(EncoderBusyError, match="shorter prompts came first"):
            await long
        assert [await middle, await short] == [whole(text) for text in texts[1:]]
        assert (pool.counters.refusals, pool.queued_chars) == (1, 0)


async def test_busy_error_is_raised_when_a_text_does_not_fit_beside_shorter_ones(
    encoder: SegmentEncoder,
) -> None:
    with closing(EncodingPool(threads=1, timeout_s=60, queue_chars=len(LONG))) as pool:
        first = asyncio.ensure_future(pool.tokens(encoder, LONG, add_special_tokens=True))
        await asyncio.sleep(0)
        with pytest.raises(EncoderBusyError, match=r"1\d{5} characters wait"):
            await pool.tokens(encoder, LONG.replace("line", "row"), add_special_tokens=True)
        # The same text needs no more work, and short ones no thread.
        assert await pool.tokens(encoder, LONG, add_special_tokens=True) == whole(LONG)
        assert await pool.tokens(encoder, "short", add_special_tokens=True) == whole("short")
        assert await first == whole(LONG)
        assert await pool.tokens(encoder, "other " * 1000, add_special_tokens=True) == whole("other " * 1000)
        assert pool.counters.refusals == 1


async def test_text_is_refused_before_it_is_queued_when_it_alone_is_above_the_limit(
    encoder: SegmentEncoder,
) -> None:
    with (
        closing(EncodingPool(queue_chars=len(LONG) - 1)) as pool,
        pytest.raises(TextTooLongError, match=f"more than {len(LONG) - 1} characters"),
    ):
        pool.tokens(encoder, LONG, add_special_tokens=True)
    assert pool.counters.encode_seconds == 0


@pytest.mark.parametrize("tokenizer", [TOKENIZER, byte_level(QWEN2)], ids=["library", "native"])
@pytest.mark.parametrize("piece", ["x", "\u4f60"])
async def test_piece_without_a_cut_gets_ids_up_to_the_limit_in_bytes(
    tokenizer: Tokenizer, piece: str
) -> None:
    n_bytes = 30_000
    n_chars = n_bytes // len(piece.encode())
    encoder = SegmentEncoder(tokenizer, limits=EncodingLimits(piece_bytes=n_bytes))
    with closing(EncodingPool(timeout_s=60)) as pool:
        text = "line by " + piece * (n_chars - len("line by "))  # too short at the cut for a segment
        got = await pool.tokens(encoder, text, add_special_tokens=True)
        assert got == array("I", tokenizer.encode(text).ids)
        for n_more in (n_chars, 9 * n_chars):
            with pytest.raises(TextTooLongError, match="cannot be cut has more than 30000 bytes"):
                await pool.tokens(encoder, text + piece * n_more, add_special_tokens=True)


async def test_short_text_is_encoded_before_a_long_one_that_came_first(encoder: SegmentEncoder) -> None:
    with closing(EncodingPool(threads=1, timeout_s=60)) as pool:
        long = asyncio.ensure_future(
            pool.tokens(encoder, "".join(f"part {n}\n{LONG}" for n in range(20)), add_special_tokens=True)
        )
        await asyncio.sleep(0)
        n_long = pool.queued_chars
        await pool.tokens(encoder, "other " * 1000, add_special_tokens=True)
        assert not long.done()
        assert pool.queued_chars > n_long - 5 * SLICE_CHARS
        await long


async def test_very_long_text_is_split_in_a_thread_and_gets_the_same_ids() -> None:
    tokenizer = byte_level(QWEN2)
    encoder = SegmentEncoder(tokenizer)
    text = LONG * (DRAFT_CHARS // len(LONG) + 1)
    with closing(EncodingPool(timeout_s=60)) as pool:
        for _ in ("new", "known"):
            waiting = pool.tokens(encoder, text, add_special_tokens=True)
            assert await waiting == array("I", tokenizer.encode(text).ids)
    with closing(EncodingPool(timeout_s=0)) as pool, pytest.raises(EncodeTimeoutError):
        await pool.tokens(encoder, text, add_special_tokens=True)


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


async def test_work_is_dropped_when_the_last_request_that_waits_for_it_is_cancelled(
    encoder: SegmentEncoder,
) -> None:
    with closing(EncodingPool(threads=1, timeout_s=60)) as pool:
        requests = [
            asyncio.ensure_future(pool.tokens(encoder, LONG, add_special_tokens=True)) for _ in range(2)
        ]
        await asyncio.sleep(0)
        requests[0].cancel()
        await asyncio.wait(requests[:1])
        assert pool.dropped_slices == 0
        requests[1].cancel()
        await asyncio.wait(requests)
        assert pool.dropped_slices > 0
        assert pool.queued_chars <= SLICE_CHARS + 2 * 2048
        # What was dropped is encoded for the next request that has it.
        assert await pool.tokens(encoder, LONG, add_special_tokens=True) == whole(LONG)
        assert pool.queued_chars == 0


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
