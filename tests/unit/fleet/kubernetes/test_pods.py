from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import RankAddresses
from kvatlas.configs.schema import EventsConfig
from kvatlas.fleet.kubernetes.kinds import InferencePool, OldInferencePool, Pod, Pool
from kvatlas.fleet.kubernetes.pods import SLICE, PodEndpoints
from kvatlas.fleet.roster import Wanted

POOL = Pool({"app": "vllm"}, (8000,))
EVENTS = EventsConfig(port=5557, replay_port=5657)


def pod(
    name: str = "p",
    *,
    ip: str = "10.0.0.1",
    ready: str | None = "True",
    labels: dict[str, str] | None = None,
    **meta: Any,
) -> Pod:
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    found: dict[str, Any] = {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {"app": "vllm"}} | meta,
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": conditions} | ({"podIP": ip} if ip else {}),
    }
    return msgspec.json.decode(msgspec.json.encode(found), type=Pod)


def noted(**annotations: str) -> Pod:
    """Return a pod with annotations; `_` in their names stands for `-`."""
    names = {name: f"kvatlas.io/{name.replace('_', '-')}" for name in annotations}
    return pod(annotations={names[name]: text for name, text in annotations.items()})


def looked(endpoints: PodEndpoints, pods: list[Pod], pool: Pool | None) -> dict[str, Wanted | None]:
    """Return the changes after all pods were noted, slice by slice."""
    found = {each.metadata.name: each for each in pods}
    endpoints.note(found, pool, tuple(found))
    changes: dict[str, Wanted | None] = {}
    while endpoints.has_more:
        changes |= endpoints.take()
    return changes


def made(pods: list[Pod], pool: Pool, events: EventsConfig = EVENTS) -> dict[str, Wanted]:
    """Return the endpoints of pods."""
    return {name: each for name, each in looked(PodEndpoints(events), pods, pool).items() if each}


def ports(found: Pod, pool: Pool) -> list[str | None]:
    """Return the ports of each endpoint's ranks as `events/replay`."""
    return [", ".join(map(rank_ports, each.addresses.ranks)) for each in made([found], pool).values()]


def rank_ports(rank: RankAddresses) -> str:
    return "/".join(address.rpartition(":")[2] if address else "-" for address in (rank.events, rank.replay))


def test_endpoint_is_the_pods_port_when_the_pod_serves() -> None:
    found = made([pod(labels={"app": "vllm", "zone": "a"})], POOL)
    (name, endpoint), *others = found.items()
    assert (name, others, endpoint.uid) == ("p-rank-0", [], "uid-p")
    assert endpoint.labels == {"app": "vllm", "zone": "a"}
    assert endpoint.addresses.serving == HostPort("10.0.0.1", 8000)
    assert endpoint.addresses.metrics == "http://10.0.0.1:8000/metrics"
    assert endpoint.addresses.ranks == (RankAddresses(0, "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5657"),)


def test_endpoint_is_in_brackets_when_the_pod_has_an_ipv6_address() -> None:
    found = made([pod(ip="fd00::7")], POOL)
    assert found["p-rank-0"].addresses.serving == HostPort("fd00::7", 8000)
    assert found["p-rank-0"].addresses.ranks[0].events == "tcp://[fd00::7]:5557"


@pytest.mark.parametrize(
    ("annotation", "port", "expected"),
    [
        pytest.param(None, None, [None, None], id="none"),
        pytest.param(None, 5757, ["5757", "5758"], id="counted_from_the_configuration"),
        pytest.param("6000", None, ["6000", "6001"], id="counted_from_the_annotation"),
        pytest.param("", 5757, [None, None], id="switched_off"),
    ],
)
def test_snapshots_come_from_where_the_pod_says(
    annotation: str | None, port: int | None, expected: list[str | None]
) -> None:
    endpoints = PodEndpoints(EventsConfig(port=5557, snapshot_port=port))
    annotations = {} if annotation is None else {"kvatlas.io/snapshot-port": annotation}
    found = looked(endpoints, [pod(annotations=annotations)], Pool(None, (8000, 8001)))
    snapshots = [each.addresses.ranks[0].snapshots for each in found.values() if each is not None]
    assert [each and each.rpartition(":")[2] for each in snapshots] == expected


@pytest.mark.parametrize(
    "absent",
    [
        pytest.param(pod(ready="False"), id="not_ready"),
        pytest.param(pod(ready=None), id="no_condition"),
        pytest.param(pod(ip=""), id="no_address"),
        pytest.param(pod(deletionTimestamp="2026-01-01T00:00:00Z"), id="terminating"),
        pytest.param(pod(labels={"app": "other"}), id="other_label"),
    ],
)
def test_pod_has_no_endpoint_when_it_does_not_serve(absent: Pod) -> None:
    assert made([absent], POOL) == {}


def test_no_pod_has_endpoints_when_there_is_no_pool() -> None:
    endpoints = PodEndpoints(EVENTS)
    assert list(looked(endpoints, [pod()], POOL)) == ["p-rank-0"]
    assert looked(endpoints, [pod()], None) == {"p-rank-0": None}


def test_every_pod_has_endpoints_when_the_server_selected_them() -> None:
    found = made([pod(labels={"app": "other"})], Pool(None, (8000, 8001)))
    assert list(found) == ["p-rank-0", "p-rank-1"]


@pytest.mark.parametrize(
    ("annotations", "indexes"),
    [
        pytest.param({}, [0, 1, 2], id="absent"),
        pytest.param({"llm-d.ai/active-ports": " 8002 ,8000"}, [0, 2], id="some"),
        pytest.param({"llm-d.ai/active-ports": ""}, list[int](), id="none"),
        pytest.param({"llm-d.ai/active-ports": "x,9000," + "9" * 5000}, list[int](), id="garbage"),
        pytest.param({"inference.networking.k8s.io/active-ports": "8001"}, [1], id="older_name"),
        pytest.param(
            {"inference.networking.k8s.io/active-ports": "8001", "llm-d.ai/active-ports": "8002"},
            [2],
            id="both_names",
        ),
    ],
)
def test_endpoints_are_the_active_ports_when_the_pod_names_them(
    annotations: dict[str, str], indexes: list[int]
) -> None:
    found = made([pod(annotations=annotations)], Pool(None, (8000, 8001, 8002)))
    assert list(found) == [f"p-rank-{index}" for index in indexes]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, ["5557/5657", "5558/5658"], id="counted_from_the_configuration"),
        pytest.param({"events_port": "6000"}, ["6000/5657", "6001/5658"], id="counted_from_the_annotation"),
        pytest.param(
            {"events_port": "6000, 6100", "replay_port": "7000,7100"},
            ["6000/7000", "6100/7100"],
            id="one_for_each",
        ),
        pytest.param({"replay_port": ""}, ["5557/-", "5558/-"], id="no_replay"),
        pytest.param({"events_port": " "}, ["-/-", "-/-"], id="no_events"),
        pytest.param(
            {"data_parallel_size": "2"},
            ["5557/5657, 5558/5658", "5559/5659, 5560/5660"],
            id="several_ranks_behind_each",
        ),
    ],
)
def test_events_are_looked_for_where_the_pod_says(
    annotations: dict[str, str], expected: list[str | None]
) -> None:
    assert ports(noted(**annotations), Pool(None, (8000, 8001))) == expected


def test_events_come_to_us_when_the_configuration_says_so() -> None:
    found = made([pod()], POOL, EventsConfig(mode="bind"))["p-rank-0"].addresses
    assert (found.connects_to_us, found.ranks[0].events) == (True, "tcp://*:5557")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        pytest.param({"events_port": "x"}, "kvatlas.io/events-port is 'x', want one port", id="no_number"),
        pytest.param({"events_port": "1,2"}, "want one port, or one per", id="too_few"),
        pytest.param({"events_port": "70000"}, "70000", id="no_port"),
        pytest.param({"replay_port": "65535"}, "65536", id="past_the_last"),
        pytest.param({"data_parallel_size": "0"}, "want a number from 1 to 1024", id="no_ranks"),
        pytest.param({"data_parallel_size": "many"}, "data-parallel-size is 'many'", id="ranks_no_number"),
    ],
)
def test_endpoints_have_no_events_when_the_pod_says_nonsense(
    annotations: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoints, pool = PodEndpoints(EVENTS), Pool(None, (8000, 8001, 8002))
    found = looked(endpoints, [noted(**annotations)], pool)
    assert [each and each.addresses.ranks[0].events for each in found.values()] == [None, None, None]
    assert message in caplog.text
    caplog.clear()
    looked(endpoints, [noted(**annotations, other="x")], pool)
    assert caplog.text == ""  # the same problem is logged once
    assert list(looked(endpoints, [pod()], pool)) == ["p-rank-0", "p-rank-1", "p-rank-2"]


def test_pod_is_left_out_when_its_address_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert made([pod(ip="%%")], POOL) == {}
    assert "%%" in caplog.text


def test_only_changed_endpoints_are_returned_when_pods_change() -> None:
    endpoints = PodEndpoints(EVENTS)
    a, b = pod("a"), pod("b", ip="10.0.0.2")
    looked(endpoints, [a, b], POOL)
    moved = looked(endpoints, [a, pod("b", ip="10.0.0.3")], POOL)
    assert [(name, each and each.addresses.serving) for name, each in moved.items()] == [
        ("b-rank-0", HostPort("10.0.0.3", 8000))
    ]


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(pod(resourceVersion="2", annotations={"other": "x"}), id="annotation"),
        pytest.param(pod(resourceVersion="2", generation=7), id="metadata"),
    ],
)
def test_nothing_changes_when_nothing_that_is_read_has(again: Pod) -> None:
    endpoints = PodEndpoints(EVENTS)
    looked(endpoints, [pod()], POOL)
    assert looked(endpoints, [again], POOL) == {}


def test_ranks_go_when_a_pod_serves_fewer_ports() -> None:
    endpoints, pool = PodEndpoints(EVENTS), Pool(None, (8000, 8001))
    looked(endpoints, [pod()], pool)
    assert looked(endpoints, [pod(annotations={"llm-d.ai/active-ports": "8001"})], pool) == {"p-rank-0": None}


def test_endpoints_are_made_anew_when_the_events_are_elsewhere() -> None:
    endpoints = PodEndpoints(EVENTS)
    looked(endpoints, [pod()], POOL)
    endpoints.configure(EVENTS)
    assert looked(endpoints, [pod()], POOL) == {}
    endpoints.configure(EventsConfig(port=6000))
    found = looked(endpoints, [pod()], POOL)["p-rank-0"]
    assert found is not None
    assert found.addresses.ranks[0].events == "tcp://10.0.0.1:6000"


def test_pods_are_looked_at_in_slices_when_many_change() -> None:
    endpoints = PodEndpoints(EVENTS)
    pods = {f"p{number}": pod(f"p{number}") for number in range(3 * SLICE)}
    endpoints.note(pods, POOL, pods)
    assert len(endpoints.take()) == SLICE
    ending = {name: pod(name, deletionTimestamp="2026-01-01T00:00:00Z") for name in ("p0", f"p{SLICE}")}
    endpoints.note(pods | ending, POOL, ending)
    found = (
        endpoints.take()
    )  # one that had no endpoint yet is never added; one that had goes before the others come
    assert found["p0-rank-0"] is None
    assert f"p{SLICE}-rank-0" not in found
    assert len(found) == SLICE + 1
    assert len(endpoints.take()) == SLICE - 1
    assert not endpoints.has_more


META = {"name": "pool", "uid": "u", "resourceVersion": "1"}
NEW_SPEC = {
    "selector": {"matchLabels": {"app": "a"}},
    "targetPorts": [{"number": 8000}, {"number": 8001}],
    "appProtocol": "http",
    "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
}
OLD_SPEC = {"selector": {"app": "a"}, "targetPortNumber": 8000, "extensionRef": {"name": "epp"}}


@pytest.mark.parametrize(
    ("kind", "spec", "pool"),
    [
        pytest.param(InferencePool, NEW_SPEC, Pool({"app": "a"}, (8000, 8001)), id="v1"),
        pytest.param(OldInferencePool, OLD_SPEC, Pool({"app": "a"}, (8000,)), id="v1alpha2"),
    ],
)
def test_pool_is_read_when_it_is_of_either_version(
    kind: type[InferencePool | OldInferencePool], spec: dict[str, Any], pool: Pool
) -> None:
    def read(**meta: str) -> Pool | None:
        text = msgspec.json.encode({"metadata": META | meta, "spec": spec})
        return msgspec.json.decode(text, type=kind).pool

    assert read() == pool
    assert read(deletionTimestamp="2026-01-01T00:00:00Z") is None
