"""Plugins by labels: `by-label`, `header-label-affinity-scorer`, topology, and the header of conformance tests."""

from __future__ import annotations

import msgspec
import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.topology import LABELS, Topology
from kvatlas.scorers.errors import ParametersError
from support.built import built
from support.candidates import endpoint
from support.rating import judged, rated

VIEW = RequestView(model="m", now=0.0)
FLEET = [
    endpoint("a", labels={"gpu": "a100", "zone": "x"}),
    endpoint("b", labels={"gpu": "h100"}),
    endpoint("c", labels={"gpu": "", "zone": ""}),
]


def with_headers(**headers: str) -> RequestView:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestView(model="m", now=0.0, headers=named)


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        pytest.param({"label": "gpu", "validValues": ["h100", "a100"]}, "ab", id="values"),
        pytest.param({"label": "gpu", "validValues": [""]}, "c", id="empty_value"),
        pytest.param({"label": "zone", "validValues": ["x"], "allowsNoLabel": True}, "ab", id="or_none"),
        pytest.param({"label": "zone", "allowsNoLabel": True}, "b", id="none_alone"),
    ],
)
def test_by_label_keeps_endpoints_with_a_valid_value(parameters: dict[str, object], kept: str) -> None:
    plugin = built(builtin_registry().filters, "by-label", parameters)

    verdicts = judged(plugin, VIEW, FLEET)

    assert "".join(each.name for each, why in zip(FLEET, verdicts, strict=True) if why is None) == kept


def test_by_label_shows_the_value_that_is_not_valid() -> None:
    plugin = built(builtin_registry().filters, "by-label", {"label": "zone", "validValues": ["y"]})

    assert judged(plugin, VIEW, FLEET)[:2] == [
        "label zone is 'x', which is not valid",
        "label zone is None, which is not valid",
    ]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param(
            {"label": "x"}, "found no value, expected at least one, or allowsNoLabel", id="no_value"
        ),
        pytest.param({"validValues": ["x"]}, "missing required field `label`", id="no_label"),
        pytest.param({"label": "", "validValues": ["x"]}, "length >= 1", id="empty_label"),
    ],
)
def test_by_label_needs_a_label_and_values(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ParametersError, match=message):
        built(builtin_registry().filters, "by-label", parameters)


def test_label_selector_has_its_older_name() -> None:
    plugin = built(builtin_registry().filters, "by-label-selector", {"matchLabels": {"gpu": "h100"}})

    assert plugin.type == "by-label-selector"
    assert [verdict is None for verdict in judged(plugin, VIEW, FLEET)] == [False, True, False]


@pytest.mark.parametrize(
    ("view", "scores", "raw"),
    [
        pytest.param(with_headers(x_zone="x"), [1.0, 0.0, 0.0], 1.0, id="match"),
        pytest.param(with_headers(x_zone="z"), [0.0, 0.0, 0.0], 0.0, id="no_match"),
        pytest.param(with_headers(x_zone="X"), [0.0, 0.0, 0.0], 0.0, id="other_case"),
        pytest.param(with_headers(x_zone=""), [0.0, 0.0, 0.0], None, id="empty"),
        pytest.param(VIEW, [0.0, 0.0, 0.0], None, id="absent"),
    ],
)
def test_header_label_affinity_prefers_equal_labels(
    view: RequestView, scores: list[float], raw: float | None
) -> None:
    parameters = {"headerName": " X-Zone", "labelKey": "zone"}
    scorer = built(builtin_registry().scorers, "header-label-affinity-scorer", parameters)

    ratings = rated(scorer, view, FLEET)

    assert [each.score for each in ratings] == scores
    assert ratings[0].raw == raw


def at(name: str, *places: str) -> dict[str, str]:
    return dict(zip(LABELS, places, strict=True)) | {"name": name}


PEER = at("decode", "h1", "r1", "z1", "g1")
PLACES = [
    endpoint("host", labels=at("host", "h1", "r9", "z9", "g9")),
    endpoint("rack", labels=at("rack", "h2", "r1", "z9", "g1")),
    endpoint("zone", labels=at("zone", "h3", "r3", "z1", "g1")),
    endpoint("region", labels=at("region", "", "", "", "g1")),
    endpoint("apart", labels=at("apart", "h4", "r4", "z4", "g4")),
    endpoint("nowhere"),
]


def near(peer: dict[str, str] | None) -> RequestView:
    return RequestView(model="m", now=0.0, peer_labels=peer)


def test_topology_affinity_scores_the_closest_common_level() -> None:
    scorer = built(builtin_registry().scorers, "topology-affinity-scorer", {})

    ratings = rated(scorer, near(PEER), PLACES)

    assert [each.score for each in ratings] == [1.0, 0.2, 0.05, 0.02, 0.0, 0.0]
    assert [each.raw for each in ratings] == [0.0, 1.0, 2.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize("peer", [None, {}, at("decode", "", "", "", "")])
def test_topology_affinity_has_no_effect_without_a_peer(peer: dict[str, str] | None) -> None:
    scorer = built(builtin_registry().scorers, "topology-affinity-scorer", {})
    plugin = built(builtin_registry().filters, "topology-affinity-filter", {})

    assert {each.score for each in rated(scorer, near(peer), PLACES)} == {0.0}
    assert set(judged(plugin, near(peer), PLACES)) == {None}


@pytest.mark.parametrize(("level", "n_kept"), [("host", 1), ("rack", 2), ("zone", 3), ("region", 4)], ids=str)
def test_topology_filter_keeps_what_is_close_enough(level: str, n_kept: int) -> None:
    plugin = built(builtin_registry().filters, "topology-affinity-filter", {"minAffinity": level})

    reason = f"not in the {level} of the request's peer"
    assert judged(plugin, near(PEER), PLACES) == [None] * n_kept + [reason] * (6 - n_kept)
    assert judged(plugin, near(PEER), PLACES[n_kept:]) == [None] * (6 - n_kept), "none left: all"


def test_topology_extractor_names_other_labels() -> None:
    registry = builtin_registry()
    own = built(registry.extractors, "topology-extractor", {"hostname": "my/host", "zone": ""})
    assert own == Topology(("my/host", *LABELS[1:]))
    peer, fleet = {"my/host": "h"}, [endpoint("a"), endpoint("b", labels={"my/host": "h"})]
    scores = {
        name: [each.score for each in rated(scorer, near(peer), fleet)]
        for name in ("", "own", "nobody")
        for scorer in [
            built(
                registry.scorers,
                "topology-affinity-scorer",
                {"topologyProducerName": name},
                BuildContext(topologies={"own": own}),
            )
        ]
    }
    assert scores == {"": [0.0, 0.0], "own": [0.0, 1.0], "nobody": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        pytest.param("b:8000", "b", id="host_and_port"),
        pytest.param(" a , b:8000,,b", "ab", id="several"),
        pytest.param("b:9", "", id="other_port"),
        pytest.param("::1", "6", id="ipv6"),
        pytest.param("[::1]:8000", "6", id="ipv6_and_port"),
        pytest.param("", "", id="empty"),
        pytest.param(",".join(map(str, range(1000))) + ",a", "", id="too_many"),
    ],
)
def test_conformance_header_names_the_only_endpoints(named: str, kept: str) -> None:
    plugin = built(builtin_registry().filters, "header-based-testing-filter", {})
    fleet = [endpoint("a"), endpoint("b"), msgspec.structs.replace(endpoint("6"), address="[::1]:8000")]

    verdicts = judged(plugin, with_headers(test_epp_endpoint_selection=named), fleet)

    assert "".join(each.name for each, why in zip(fleet, verdicts, strict=True) if why is None) == kept


def test_without_the_conformance_header_nobody_is_left() -> None:
    plugin = built(builtin_registry().filters, "header-based-testing-filter", {})

    assert judged(plugin, VIEW, [endpoint("a")]) == [
        "the header test-epp-endpoint-selection does not name a:8000"
    ]
