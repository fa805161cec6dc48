"""Headers that steer the picker; the ids are the numbers of the protocol cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from kvatlas.routing.control_headers import (
    CONTROL_HEADERS,
    DESTINATION_HEADER,
    MAX_ID_CHARS,
    SIDECAR_HEADERS,
    fairness_id,
    model_rewrite,
    objective,
    only_if_cached,
    traceparent,
)
from support.tree import ROOT

Reader = Callable[[Mapping[str, str]], str]

NAMES = [
    pytest.param(objective, "inference-objective", "", id="R17_objective"),
    pytest.param(fairness_id, "inference-fairness-id", "default-flow", id="R18_fairness_id"),
    pytest.param(model_rewrite, "model-name-rewrite", "", id="R15_model_rewrite"),
]


@pytest.mark.parametrize(("read", "name", "absent"), NAMES)
def test_present_name_wins_over_the_older_one(read: Reader, name: str, absent: str) -> None:
    new, old = f"x-llm-d-{name}", f"x-gateway-{name}"

    assert read({new: "a", old: "b"}) == "a"  # R19
    assert read({old: "b"}) == "b"
    assert read({new: "", old: "b"}) == "b"
    assert read({}) == absent
    assert {new, old} <= CONTROL_HEADERS


def test_headers_of_sidecars_and_token_estimates_are_the_pickers() -> None:
    # source: common.go of llm-d-router
    assert {
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
        "x-llm-d-video-fps",
        "x-llm-d-video-duration-seconds",
        "x-llm-d-video-resolution",
    } <= CONTROL_HEADERS


@pytest.mark.parametrize(
    "file",
    [
        "deploy/charts/kvatlas/templates/_envoy.tpl",
        "configs/envoy/duplex.yaml",
        "configs/envoy/buffered.yaml",
    ],
)
def test_envoy_removes_every_header_that_names_a_host(file: str) -> None:
    removed = re.findall(r"- remove: (\S+)", (ROOT / file).read_text())

    assert removed == [DESTINATION_HEADER, *SIDECAR_HEADERS]


@pytest.mark.parametrize("read", [objective, fairness_id])
def test_names_made_up_by_clients_are_cut(read: Reader) -> None:
    headers = dict.fromkeys(CONTROL_HEADERS, "x" * 60_000)

    assert read(headers) == "x" * MAX_ID_CHARS


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        pytest.param("if-available", True, id="R25_alone"),
        pytest.param("respond-async, If-Available", True, id="R25_among_others"),
        pytest.param("if-available ; wait=1", True, id="with_parameters"),
        pytest.param("if-available=true", False, id="with_a_value"),
        pytest.param("if-available-soon", False, id="another_word"),
        pytest.param("", False, id="empty"),
    ],
)
def test_preference_for_cached_prefixes(value: str, wanted: bool) -> None:
    assert only_if_cached({"prefer": value}) is wanted
    assert only_if_cached({}) is False


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        pytest.param("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True, id="well_formed"),
        pytest.param("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", False, id="upper_case"),
        pytest.param("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", False, id="longer"),
        pytest.param("", False, id="empty"),
    ],
)
def test_trace_context_is_kept_when_it_is_one(value: str, kept: bool) -> None:
    assert traceparent({"traceparent": value}) == (value if kept else "")
