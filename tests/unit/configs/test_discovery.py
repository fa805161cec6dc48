"""Files that list servers, in the formats of kvatlas and of the reference picker."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.discovery import read_endpoints
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.schema import EventsConfig, StaticEndpoint
from kvatlas.configs.scraping import MetricsScrapeConfig


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "endpoints.yaml"


def read(file: Path, text: str) -> tuple[StaticEndpoint, ...]:
    file.write_text(text)
    return read_endpoints(file, EventsConfig())


OWN = """
- {name: a, address: "10.0.0.1:8000", labels: {zone: x}}
- name: b
  address: 10.0.0.2:8000
  dataParallelSize: 2
  events: tcp://10.0.0.2:6000
"""

REFERENCE = """
endpoints:
  - name: a
    address: 10.0.0.1
    port: "8000"
    labels:
      llm-d.ai/engine-type: vllm
  - {name: b, namespace: default, address: 10.0.0.2, port: 8000}
  - {name: b, namespace: other, address: "2001:db8::1", port: "8000", metricsHost: "[2001:db8::1]:9000"}
  - {name: c, namespace: "", address: host.example, port: "8000"}
"""


def test_own_list_has_the_keys_of_static_endpoints(file: Path) -> None:
    assert read(file, OWN) == (
        StaticEndpoint(name="a", address="10.0.0.1:8000", labels={"zone": "x"}),
        StaticEndpoint(name="b", address="10.0.0.2:8000", data_parallel_size=2, events="tcp://10.0.0.2:6000"),
    )


def test_list_of_the_reference_picker_is_read(file: Path) -> None:
    assert read(file, REFERENCE) == (
        StaticEndpoint(name="a", address="10.0.0.1:8000", labels={"llm-d.ai/engine-type": "vllm"}),
        StaticEndpoint(name="b", address="10.0.0.2:8000"),
        StaticEndpoint(
            name="other/b", address="[2001:db8::1]:8000", metrics="http://[2001:db8::1]:9000/metrics"
        ),
        StaticEndpoint(name="c", address="host.example:8000"),
    )


def test_json_is_yaml(file: Path) -> None:
    text = '{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": "8000"}]}'

    assert read(file, text) == (StaticEndpoint(name="a", address="10.0.0.1:8000"),)


@pytest.mark.parametrize("text", ["[]", "endpoints: []"])
def test_empty_list_has_no_endpoints(file: Path, text: str) -> None:
    assert read(file, text) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "the file is empty", id="empty"),
        pytest.param("- {name: a", "line 1: not valid YAML: ", id="yaml"),
        pytest.param("a", "line 1: found 'a', expected a mapping with keys endpoints", id="text"),
        pytest.param("endpoints:", "line 1, endpoints: found nothing, expected a list", id="nothing"),
        pytest.param(
            "- {name: a, address: 'h:1'}\n- {name: a, address: 'h:2'}",
            "line 2, [1].name: found 'a', which is also the name at [0].name",
            id="own_name_twice",
        ),
        pytest.param("- {name: a, address: 'h:1', lables: {}}", "line 1, [0].lables: unknown key; did you mean 'labels'? ", id="own_key"),
        pytest.param("- {name: a, address: h}", "line 1, [0].address: found 'h', expected HOST:PORT", id="own_address"),
        pytest.param(
            "endpoints:\n- {name: a, address: h, port: x}",
            "line 2, endpoints[0].address: found 'h:x', expected HOST:PORT",
            id="reference_port",
        ),
        pytest.param(
            "endpoints:\n- {name: a, address: h, port: 70000}",
            "line 2, endpoints[0].port: found 70000, expected text, not empty or a whole number from 1 to 65535",
            id="reference_port_number",
        ),
        pytest.param("endpoints:\n- {name: a, address: h}", "line 2, endpoints[0].port: missing", id="reference_no_port"),
        pytest.param(
            "endpoints:\n- {name: a, address: h, port: '1', metricsHost: ':'}",
            "line 2, endpoints[0].metrics: found 'http://:/metrics', expected a URL",
            id="reference_metrics",
        ),
        pytest.param(
            "endpoints:\n- {name: a, address: h, port: '1'}\n- {name: b, address: h, port: 1}",
            "line 3, endpoints[1].address: found 'h:1', which is also the address at endpoints[0].address",
            id="reference_address_twice",
        ),
    ],
)  # fmt: skip
def test_unusable_file_is_one_clear_line(file: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(file, text)

    message = str(raised.value).replace(str(file), file.name)
    assert message.startswith(f"endpoints.yaml: {problem}")
    assert "\n" not in message


def test_every_problem_is_listed(file: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(file, "- {address: x}\n- {name: b}\n")

    assert [problem.line for problem in raised.value.problems] == [1, 2]


CLUSTERS = """
endpoints:
  - {name: east, address: east.example, port: 443, labels: {metricsAddress: "2001:db8::1", metricsPort: "9090"}}
  - {name: west, address: west.example, port: 443, labels: {metricsPort: "9090"}}
  - {name: north, address: north.example, port: 443, metricsHost: "10.0.0.1:9"}
"""


def test_clusters_name_the_metrics_of_their_picker(file: Path) -> None:
    file.write_text(CLUSTERS)
    scrape = MetricsScrapeConfig(scheme="https", page="m")

    found = read_endpoints(file, EventsConfig(), scrape)

    assert [each.metrics for each in found] == [
        "https://[2001:db8::1]:9090/m",
        "https://west.example:9090/m",
        "https://10.0.0.1:9/m",
    ]
