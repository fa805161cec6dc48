"""Sizes of blocks and tiers that are known from routing alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvatlas.configs.approximate import ApproximateConfig


def section(**keys: Any) -> ApproximateConfig:
    return msgspec.convert(keys, ApproximateConfig)


@pytest.mark.parametrize(
    ("keys", "told", "size"),
    [
        pytest.param({}, None, 16, id="default"),
        pytest.param({}, 32, 32, id="told"),
        pytest.param({"blockSizeTokens": 128}, 32, 32, id="told_before_given"),
        pytest.param({"blockSizeTokens": 128, "autoTune": False}, 32, 128, id="given"),
        pytest.param({"minBlockSizeTokens": 64}, 32, 64, id="least"),
        pytest.param({"minBlockSizeTokens": 64}, 256, 256, id="above_the_least"),
    ],
)
def test_block_size_is_the_engines_or_the_given_one(
    keys: dict[str, Any], told: int | None, size: int
) -> None:
    assert section(**keys).block_size(told) == size


@pytest.mark.parametrize(
    ("keys", "n_blocks", "told", "capacity"),
    [
        pytest.param({}, None, None, 31_250, id="default"),
        pytest.param({"lruCapacityPerServer": 9}, None, 16, 9, id="given"),
        pytest.param({"lruCapacityPerServer": 9}, 1000, 16, 1000, id="told_before_given"),
        pytest.param({"lruCapacityPerServer": 9, "autoTune": False}, 1000, 16, 9, id="not_tuned"),
        pytest.param({"minBlockSizeTokens": 64}, 1000, 16, 250, id="in_larger_blocks"),
        pytest.param({"minBlockSizeTokens": 64}, 1000, None, 1000, id="blocks_of_unknown_size"),
        pytest.param({"minBlockSizeTokens": 64}, 1, 16, 1, id="least"),
    ],
)
def test_capacity_is_the_tokens_of_the_engine_or_the_given_number(
    keys: dict[str, Any], n_blocks: int | None, told: int | None, capacity: int
) -> None:
    assert section(**keys).capacity(n_blocks, told) == capacity
