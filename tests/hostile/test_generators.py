"""The generators of `make hostile`: each file in their folder makes inputs, the same ones from the same seed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

import pytest

from hostile.run import GENERATORS


@pytest.mark.parametrize("kind", GENERATORS)
def test_generator_makes_the_same_inputs_from_a_seed(kind: str) -> None:
    inputs: Callable[[Random], Iterator[object]] = importlib.import_module(
        f"hostile.generators.{kind}"
    ).inputs
    once, again, other = (list(islice(inputs(Random(seed)), 20)) for seed in (1, 1, 2))
    assert once == again != other
