"""Output lengths: means, fallbacks, forgetting, and bounds."""

from __future__ import annotations

import pytest

from kvatlas.scorers.latency.lengths import MAX_KEYS, MAX_TOKENS, PRIOR_TOKENS, OutputLengths


def learned(model: str, lengths: list[int]) -> OutputLengths:
    found = OutputLengths()
    for n_tokens in lengths:
        found.add(model, n_tokens)
    return found


def test_an_unknown_model_has_the_lengths_of_all() -> None:
    found = learned("m", [100] * 50)
    for _ in range(50):
        found.add("n", 900)

    assert found.mean("m") == pytest.approx(100)
    assert 100 < found.mean("unknown") < 900
    assert OutputLengths().mean("m") == PRIOR_TOKENS


def test_few_responses_are_not_enough() -> None:
    found = learned("m", [100] * 100)
    for _ in range(5):
        found.add("n", 9000)

    assert found.mean("n") < 1000


def test_the_first_responses_count_more_than_what_nobody_has_seen() -> None:
    found = learned("m", [8] * 4)

    assert 8 < found.mean("m") < PRIOR_TOKENS / 2
    assert found.mean("other") == found.mean("m")


@pytest.mark.parametrize(
    ("lengths", "n_tokens"),
    [
        pytest.param([100] * 5, (2 * PRIOR_TOKENS + 500) / 7 / 2, id="few"),
        pytest.param([100] * 40, 50, id="alike"),
        pytest.param([1, 999] * 500, 499, id="the_long_ones_are_seen_most"),
    ],
)
def test_responses_under_way_have_half_of_their_length(lengths: list[int], n_tokens: float) -> None:
    assert learned("m", lengths).under_way("m") == pytest.approx(n_tokens, rel=0.01)


def test_one_wrong_count_does_not_make_responses_under_way_seem_as_long() -> None:
    found = learned("m", [300] * 2000)
    found.add("m", MAX_TOKENS)

    assert found.mean("m") < 400
    assert found.under_way("m") < 2000


def test_a_model_with_far_longer_responses_than_others_is_learned_as_they_are() -> None:
    found = learned("m", [100] * 2000)
    for n_tokens in [20_000, 90_000] * 200:
        found.add("n", n_tokens)

    assert found.mean("n") == pytest.approx(55_000, rel=0.1)


def test_old_lengths_fade() -> None:
    found = learned("m", [1000] * 3000 + [10] * 3000)

    assert found.mean("m") == pytest.approx(10, rel=2.0)


def test_keys_are_bounded_and_impossible_lengths_are_ignored() -> None:
    found = OutputLengths()
    for number in range(3 * MAX_KEYS):
        found.add(f"model-{number}", 5)
    assert len(found) == MAX_KEYS

    for n_tokens in (0, -1, MAX_TOKENS + 1):
        found.add("m", n_tokens)
    assert found.mean("m") == pytest.approx(5)


def test_weights_stay_finite_over_a_long_time() -> None:
    found = learned("m", [1, 7] * 10_000)

    assert found.mean("m") == pytest.approx(4, rel=0.01)


def share(source: OutputLengths, *targets: tuple[str, OutputLengths]) -> None:
    for key in source.shared.known():
        for owner, target in targets:
            target.shared.take(owner, key, source.shared.own(key, 0.0), now=0.0)


def test_lengths_of_siblings_count_like_own_ones() -> None:
    lengths = [50, 80, 300, 2000] * 20
    both = learned("m", lengths)
    mine, other = learned("m", lengths[::2]), learned("m", lengths[1::2])
    share(other, ("other", mine))
    assert mine.mean("m") == pytest.approx(both.mean("m"), rel=0.02)
    assert mine.under_way("m") == pytest.approx(both.under_way("m"), rel=0.02)

    alone = OutputLengths()
    share(mine, ("mine", alone))
    half = learned("m", lengths[::2])
    assert alone.mean("m") == pytest.approx(half.mean("m"))
    assert alone.under_way("m") == pytest.approx(half.under_way("m"))
    for key in mine.shared.known():
        alone.shared.take("mine", key, None, now=0.0)
    assert alone.mean("m") == PRIOR_TOKENS


def test_own_lengths_are_published_without_those_of_siblings_and_again_after_each_response() -> None:
    mine, other = learned("m", [10] * 30), learned("m", [90] * 30)
    before = [mine.shared.own(key, 0.0) for key in mine.shared.known()]
    share(other, ("other", mine))
    assert [mine.shared.own(key, 0.0) for key in mine.shared.known()] == before
    mean = mine.mean("m")
    mine.shared.on_change = lambda: None
    mine.add("m", 1000)
    assert mine.mean("m") > mean
    assert list(mine.shared.changed) == ["", "m"]


@pytest.mark.parametrize("key", ["", "m"])
@pytest.mark.parametrize(
    "numbers", [[], [1.0], [-1.0] * 3, [1.0] * 42, [1e15, 1e15, 5e-324], [1.0, 1e15, 40.0]]
)
def test_impossible_numbers_of_siblings_change_nothing(key: str, numbers: list[float]) -> None:
    found = OutputLengths()
    found.shared.take("other", key, numbers, now=0.0)
    assert found.mean("m") == PRIOR_TOKENS


def test_responses_without_tokens_have_none_under_way() -> None:
    found = OutputLengths()
    found.shared.take("other", "m", [0.0, 0.0, 40.0], now=0.0)
    assert found.under_way("m") == 0.0


def test_lengths_of_siblings_stay_bounded() -> None:
    found, one = OutputLengths(), learned("m", [5])
    numbers = one.shared.own("m", 0.0)
    for number in range(2 * MAX_KEYS):
        found.shared.take("other", f"{number:05}", numbers, now=0.0)
    assert found.mean("00000") == PRIOR_TOKENS
