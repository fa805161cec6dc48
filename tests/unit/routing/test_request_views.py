"""A request as scorers see it."""

from __future__ import annotations

from array import array

from kvatlas.indexer.prefix import Prefix
from kvatlas.routing.request_views import request_view
from kvatlas.tokenization.model import Prompt


def test_scorers_see_the_block_keys_of_the_prompt() -> None:
    prefix = Prefix(array("I", range(40)))

    with_keys, without = request_view("m", prefix), request_view("m", None)

    assert (with_keys.prefix, with_keys.n_tokens) == (prefix, 40)
    assert (without.prefix, without.n_tokens) == (None, 0)


def test_scorers_see_whether_the_first_byte_will_show_when_a_response_begins() -> None:
    streamed, whole = (
        request_view("m", None, prompt=Prompt("m", None, stream=stream)) for stream in (True, False)
    )

    assert (streamed.is_streamed, whole.is_streamed) == (True, False)
    assert request_view("m", None).is_streamed, "of a body that is not read nothing is known"
