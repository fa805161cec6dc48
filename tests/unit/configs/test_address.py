"""Valid and invalid addresses in every form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.address import (
    HostPort,
    ZmqAddress,
    check_base_url,
    check_bind_address,
    check_metrics_url,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        pytest.param("10.0.0.1:8000", "10.0.0.1", 8000, id="ipv4"),
        pytest.param("[2001:DB8:0::1]:8000", "2001:db8::1", 8000, id="ipv6_in_its_short_form"),
        pytest.param("Vllm-0.Models.svc:65535", "vllm-0.models.svc", 65535, id="name_in_lower_case"),
        pytest.param("localhost:1", "localhost", 1, id="lowest_port"),
        pytest.param("vllm_0:80", "vllm_0", 80, id="underscore"),
    ],
)
def test_host_and_port_are_parsed(text: str, host: str, port: int) -> None:
    parsed = HostPort.parse(text)

    assert (parsed.host, parsed.port) == (host, port)
    assert HostPort.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8000",
        ":8000",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:port",
        "10.0.0.1:-1",
        "10.0.0.1:123456",
        "10.0.0.256:8000",
        "2001:db8::1:8000",
        "[2001:db8::g]:8000",
        "[10.0.0.1]:8000",
        "http://10.0.0.1:8000",
        "*:8000",
        "a b:8000",
        "-a:8000",
        "10.0.0.1:8000/",
        "10.0.0.1:٨٠٠٠",
    ],
)
def test_other_forms_are_rejected_with_the_right_one(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"expected HOST:PORT such as 10\.0\.0\.1:8000 or \[2001:db8::1\]:8000"
    ):
        HostPort.parse(text)


@pytest.mark.parametrize(
    ("text", "lowest", "message"),
    [
        ("a:0", 1, "found port 0 in 'a:0', expected a port from 1 to 65535"),
        ("a:65536", 0, "found port 65536 in 'a:65536', expected a port from 0 to 65535"),
    ],
)
def test_port_out_of_range_is_rejected(text: str, lowest: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HostPort.parse(text, lowest_port=lowest)


def test_port_zero_is_allowed_on_request() -> None:
    assert HostPort.parse("127.0.0.1:0", lowest_port=0).port == 0


@given(st.text())
def test_any_text_is_an_address_or_rejected(text: str) -> None:
    try:
        parsed = HostPort.parse(text)
    except ValueError:
        return
    assert HostPort.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "rank", "address"),
    [
        pytest.param("tcp://10.0.0.1:5557", 0, "tcp://10.0.0.1:5557", id="rank_0_as_written"),
        pytest.param("tcp://10.0.0.1:5557", 3, "tcp://10.0.0.1:5560", id="rank_adds_to_the_port"),
        pytest.param("tcp://[::1]:5557", 1, "tcp://[::1]:5558", id="ipv6"),
        pytest.param("ipc:///run/kv.sock", 0, "ipc:///run/kv.sock", id="ipc"),
    ],
)
def test_zmq_address_of_a_rank(text: str, rank: int, address: str) -> None:
    assert ZmqAddress.parse(text).of_rank(rank) == address


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        ("ipc:///run/kv.sock", 1, "'ipc:///run/kv.sock' serves one data-parallel rank"),
        ("tcp://a:65535", 1, "rank 1 of 'tcp://a:65535' would be on port 65536, above 65535"),
    ],
)
def test_rank_without_a_port_is_rejected(text: str, rank: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ZmqAddress.parse(text).of_rank(rank)


def test_longest_ipc_path_is_that_of_a_unix_socket() -> None:
    assert ZmqAddress.parse(f"ipc://{'x' * 107}").tcp is None
    with pytest.raises(ValueError, match="expected an ipc path of at most 107 bytes"):
        ZmqAddress.parse(f"ipc://{'x' * 108}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:5557",
        "tcp://",
        "tcp://*:5557",
        "tcp://10.0.0.1",
        "tcp://a:0",
        "ipc://",
        "tcp://_host:5557",
        "udp://a:1",
        "tcp:a:1",
    ],
)
def test_other_zmq_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected tcp://HOST:PORT such as"):
        ZmqAddress.parse(text)


@pytest.mark.parametrize("text", ["http://a", "https://[::1]:8000", "http://a/prefix/"])
def test_base_url_is_accepted(text: str) -> None:
    check_base_url(text)


@pytest.mark.parametrize(
    "text", ["", "endpoint", "a:8000", "ftp://a", "http://a/?x=1", "http://a/#x", "http:// a"]
)
def test_other_base_urls_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a URL such as http"):
        check_base_url(text)


@pytest.mark.parametrize("text", ["http://a/metrics", "https://[::1]:8000/metrics?x=1", "http://10.0.0.1:80"])
def test_metrics_url_is_accepted(text: str) -> None:
    check_metrics_url(text)


@pytest.mark.parametrize(
    "text",
    ["", "a:8000/metrics", "ftp://a/metrics", "http://", "http:///metrics", "http://a:port/", "http://[::1/", "http://a:0/",
     "http://a b/", "http://a/met rics"],
)  # fmt: skip
def test_other_metrics_urls_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a URL such as http"):
        check_metrics_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "tcp://*:5557",
        "tcp://*:0",
        "tcp://10.0.0.1:5557",
        "tcp://[::]:5557",
        "tcp://[::1]:0",
        "tcp://eth0:1",
        "ipc:///run/kv",
    ],
)
def test_bind_address_is_accepted(text: str) -> None:
    check_bind_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5557",
        "*:5557",
        "tcp://",
        "tcp://*",
        "tcp://*:",
        "tcp://*:65536",
        "tcp://**:1",
        "tcp://:1",
        "udp://*:1",
        "ipc://",
    ],
)
def test_other_bind_addresses_are_rejected_with_the_right_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"found '.*expected tcp://\*:5557 for every interface"):
        check_bind_address(text)
