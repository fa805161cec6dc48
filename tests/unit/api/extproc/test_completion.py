"""What the end of a request says of the endpoint it was sent to."""

from __future__ import annotations

import pytest

from kvatlas.routing.outcome import Completion, Outcome, Response
from support.ext_proc import make_route

PICKED, OTHER = "10.0.0.1:8000", "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("completion", "was_computed"),
    [
        pytest.param(Completion("", None, Outcome.REFUSED), False, id="refused"),
        pytest.param(Completion("", make_route(PICKED), Outcome.ROUTED), True, id="not_shown"),
        pytest.param(
            Completion("", make_route(PICKED), Outcome.COMPLETED, PICKED, Response(200)), True, id="answered"
        ),
        pytest.param(
            Completion("", make_route(PICKED), Outcome.COMPLETED, None, Response(503)), False, id="error"
        ),
        pytest.param(
            Completion("", make_route(PICKED), Outcome.COMPLETED, OTHER, Response(200)), False, id="fallback"
        ),
        pytest.param(
            Completion("", make_route(PICKED), Outcome.ABORTED, PICKED, Response(200)),
            False,
            id="left_before",
        ),
        pytest.param(
            Completion(
                "", make_route(PICKED), Outcome.ABORTED, PICKED, Response(200, time_to_first_byte_s=0.1)
            ),
            True,
            id="left_amid_the_answer",
        ),
    ],
)
def test_prompt_was_computed_unless_the_picked_endpoint_gave_no_answer(
    completion: Completion, *, was_computed: bool
) -> None:
    assert completion.was_computed is was_computed
