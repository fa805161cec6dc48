"""Topics of publishers that connect to kvatlas, and the endpoint that each one names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.errors import TopicError
from kvatlas.events.topics import TopicDirectory, parse_topic

FLEET = {
    "vllm-0": "10.0.0.1:8000",
    "vllm-1": "10.0.0.2:8000",
    "vllm-2": "10.0.0.2:8001",
    "pod.example": "[2001:db8::1]:8000",
    "v6-pair-a": "[2001:db8::2]:8000",
    "v6-pair-b": "[2001:db8::2]:8001",
    "named": "host.example:8000",
    "10.0.0.9": "10.0.0.8:8000",
}


def directory(fleet: dict[str, str] = FLEET) -> TopicDirectory:
    made = TopicDirectory()
    for name, serving in fleet.items():
        made.add(name, serving)
    return made


@pytest.mark.parametrize(
    ("topic", "endpoint", "model"),
    [
        pytest.param(b"kv@10.0.0.1:8000@qwen", "10.0.0.1:8000", "qwen", id="host_port_model"),
        pytest.param(b"kv@10.0.0.1@Qwen/Qwen3-32B", "10.0.0.1", "Qwen/Qwen3-32B", id="no_port"),
        pytest.param(b"kv@vllm-0@org/m@rev@2", "vllm-0", "org/m@rev@2", id="model_with_separator"),
        pytest.param(b"kv@[::1]:8000@m", "[::1]:8000", "m", id="ipv6"),
        pytest.param(b"kv@vllm-0", "vllm-0", "", id="no_model"),
        pytest.param(b"@vllm-0@m", "vllm-0", "m", id="no_prefix"),
        pytest.param("kv@knoten-ä@m".encode(), "knoten-ä", "m", id="not_ascii"),
    ],
)
def test_topic_is_split_at_its_first_two_separators(topic: bytes, endpoint: str, model: str) -> None:
    assert parse_topic(topic) == (endpoint, model)


@pytest.mark.parametrize("topic", [b"", b"kv", b"kv@", b"kv@@model", b"kv@\xff@m", b"\xc1"])
def test_topic_is_refused_when_it_names_nothing(topic: bytes) -> None:
    with pytest.raises(TopicError, match="kv@ENDPOINT@MODEL") as caught:
        parse_topic(topic)
    assert caught.value.reason == "not_a_topic"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        pytest.param("10.0.0.1:8000", "vllm-0", id="address"),
        pytest.param("10.0.0.1", "vllm-0", id="only_endpoint_of_the_host"),
        pytest.param("10.0.0.2:8001", "vllm-2", id="one_of_two_on_a_host"),
        pytest.param("vllm-1", "vllm-1", id="name"),
        pytest.param("HOST.Example:8000", "named", id="host_in_any_case"),
        pytest.param("HOST.example", "named", id="host_alone_in_any_case"),
        pytest.param("[2001:db8::1]:8000", "pod.example", id="ipv6"),
        pytest.param("[2001:DB8:0::1]:8000", "pod.example", id="ipv6_in_another_form"),
        pytest.param("2001:db8::1", "pod.example", id="ipv6_alone"),
        pytest.param("[2001:db8::1]", "pod.example", id="ipv6_alone_in_brackets"),
        pytest.param("2001:db8::2:8001", "v6-pair-b", id="ipv6_and_port_without_brackets"),
        pytest.param("pod.example", "pod.example", id="name_like_a_host"),
        pytest.param("10.0.0.9", "10.0.0.9", id="name_like_an_address"),
    ],
)
def test_endpoint_is_found(written: str, name: str) -> None:
    assert directory().find(f"kv@{written}@model".encode()) == name


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        pytest.param("10.0.0.1:8001", "unknown_endpoint", id="other_port"),
        pytest.param("10.0.0.3", "unknown_endpoint", id="other_host"),
        pytest.param("VLLM-0", "unknown_endpoint", id="names_have_case"),
        pytest.param("10.0.0.1:99999", "unknown_endpoint", id="no_port_number"),
        pytest.param("10.0.0.1:٨٠٠٠", "unknown_endpoint", id="digits_of_another_script"),
        pytest.param("10.0.0.1:", "unknown_endpoint", id="empty_port"),
        pytest.param(":8000", "unknown_endpoint", id="empty_host"),
        pytest.param("SHARED_STORAGE", "unknown_endpoint", id="storage_publisher"),
        pytest.param("10.0.0.2", "ambiguous_host", id="two_on_the_host"),
        pytest.param("2001:db8::2", "ambiguous_host", id="two_on_the_ipv6_host"),
    ],
)
def test_endpoint_is_not_guessed(written: str, reason: str) -> None:
    with pytest.raises(TopicError) as caught:
        directory().find(f"kv@{written}@model".encode())
    assert caught.value.reason == reason
    assert written in str(caught.value)


def test_host_is_unambiguous_once_the_other_endpoint_left() -> None:
    fleet = directory()
    fleet.remove("vllm-1")
    assert fleet.find(b"kv@10.0.0.2@m") == "vllm-2"
    fleet.remove("vllm-2")
    with pytest.raises(TopicError):
        fleet.find(b"kv@10.0.0.2@m")


hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z]", fullmatch=True),
)


@given(
    host=hosts, port=st.integers(1, 65535), model=st.text(max_size=30), others=st.sets(st.integers(1, 65535))
)
def test_serving_address_is_found_whatever_the_model_is(
    host: str, port: int, model: str, others: set[int]
) -> None:
    fleet = directory({f"endpoint {p}": f"{host}:{p}" for p in {port, *others}})
    topic = f"kv@{host}:{port}@{model}".encode(errors="surrogatepass")
    if any("\ud800" <= character <= "\udfff" for character in model):
        with pytest.raises(TopicError):
            fleet.find(topic)
    else:
        assert fleet.find(topic) == f"endpoint {port}"


@given(topic=st.binary(max_size=60) | st.text(alphabet="@kv:[]0123456789.%ab", max_size=40).map(str.encode))
def test_any_bytes_name_an_endpoint_or_are_refused(topic: bytes) -> None:
    assert found_or_reason(topic) in {*FLEET, "not_a_topic", "unknown_endpoint", "ambiguous_host"}


def found_or_reason(topic: bytes) -> str:
    try:
        return directory().find(topic)
    except TopicError as error:
        return error.reason
