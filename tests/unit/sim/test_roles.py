"""Roles of simulated servers, as given on the command line."""

from __future__ import annotations

import pytest

from kvatlas.sim.errors import ReplayError
from kvatlas.sim.limits import MAX_SERVERS
from kvatlas.sim.roles import parse_roles


def test_each_role_has_its_number_of_servers_in_the_order_given() -> None:
    assert parse_roles("prefill=2, decode=1,encode=0") == ("prefill", "prefill", "decode")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("decode", "want ROLE=NUMBER", id="no_number"),
        pytest.param("decode=-1", "want ROLE=NUMBER", id="negative"),
        pytest.param("draft=1", "found 'draft=1'", id="no_role"),
        pytest.param("prefill=2", "no server decodes", id="none_decodes"),
        pytest.param("decode=1,prefill=1,decode=2", "found 'decode' twice", id="twice"),
        pytest.param(f"decode={MAX_SERVERS},prefill=1", f"at most {MAX_SERVERS} in all", id="too_many"),
        pytest.param(f"decode={'9' * 5000}", f"at most {MAX_SERVERS} in all", id="huge"),
    ],
)
def test_roles_are_refused_with_what_was_found(text: str, said: str) -> None:
    with pytest.raises(ReplayError) as refused:
        parse_roles(text)
    assert said in str(refused.value)
