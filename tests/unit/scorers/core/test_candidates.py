"""The table of a decision gives back the endpoints that it was made of."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate, RequestView
from support.candidates import REQUESTS, fleets


@given(fleet=fleets())
def test_rows_are_the_endpoints_that_the_table_was_made_of(fleet: list[Candidate]) -> None:
    assert list(Candidates.of(fleet)) == fleet


@given(fleet=fleets(min_size=1), data=st.data())
def test_taken_rows_are_a_table_of_these_endpoints(fleet: list[Candidate], data: st.DataObject) -> None:
    table = Candidates.of(fleet)
    order = data.draw(st.lists(st.sampled_from(range(len(fleet))), unique=True))

    taken = table.take(np.array(order, np.intp))

    assert list(taken) == [fleet[row] for row in order]
    assert list(taken.names) == [fleet[row].name for row in order]
    assert list(taken.addresses) == [fleet[row].address for row in order]
    values, codes = taken.labelled("zone")
    assert [values[code] for code in codes] == [fleet[row].labels.get("zone") for row in order]
    assert [taken.row(name) for name in taken.names] == list(range(len(order)))


@given(request=REQUESTS, fleet=fleets())
def test_uncached_tokens_are_those_of_each_endpoint(request: RequestView, fleet: list[Candidate]) -> None:
    table = Candidates.of(fleet)

    assert table.uncached_tokens(request).tolist() == [each.uncached_tokens(request) for each in fleet]
