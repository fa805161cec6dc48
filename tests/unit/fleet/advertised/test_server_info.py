"""The `kv_events` of SGLang's `/server_info`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.endpoints import RankAddresses
from kvatlas.fleet.advertised.server_info import Advertised, AdvertisedError, read_server_info

HOST = "10.0.0.7"
TOLD: dict[str, Any] = {
    "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv@a@m", "block_size": 64, "dp_size": 2,
    "load_endpoint_port_base": 5657, "load_topic": "load", "replay_endpoint_port_base": 5757,
}  # fmt: skip


def info(**changes: Any) -> bytes:
    return json.dumps({"model_path": "m", "kv_events": TOLD | changes, "internal_states": [{}]}).encode()


def test_all_streams_of_all_ranks_are_read() -> None:
    assert read_server_info(info(), HOST) == Advertised(
        ranks=(
            RankAddresses(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5757"),
            RankAddresses(1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:5758"),
        ),
        loads=("tcp://10.0.0.7:5657", "tcp://10.0.0.7:5658"),
        load_topic="load",
        topic="kv@a@m",
        block_size=64,
    )


def test_absent_streams_are_absent() -> None:
    body = json.dumps({"kv_events": {"publisher": "zmq", "endpoint_port_base": 1}}).encode()
    found = read_server_info(body, "::1")
    assert found == Advertised((RankAddresses(0, "tcp://[::1]:1", None),), (), "load", "", None)


@pytest.mark.parametrize(
    "body", [b"{}", b'{"kv_events": null}', info(publisher="null")], ids=["old_version", "off", "no_zmq"]
)
def test_server_without_streams(body: bytes) -> None:
    assert read_server_info(body, HOST) is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"<html>", id="no_json"),
        pytest.param(b"[" * 100_000, id="nested"),
        pytest.param(info(endpoint_port_base=70_000), id="port"),
        pytest.param(info(endpoint_port_base=65_535), id="port_of_last_rank"),
        pytest.param(info(dp_size=10**9), id="ranks"),
        pytest.param(info(block_size=0), id="block_size"),
        pytest.param(info(endpoint_host="10.0.0.8"), id="another_host"),
    ],
)
def test_descriptions_that_cannot_be_used_are_refused(body: bytes) -> None:
    with pytest.raises(AdvertisedError):
        read_server_info(body, HOST)


@given(
    st.dictionaries(
        st.sampled_from(list(TOLD)), st.none() | st.integers() | st.text(max_size=9) | st.lists(st.integers())
    )
)
def test_any_description_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        found = read_server_info(info(**changes), HOST)
    except AdvertisedError:
        return
    assert found is None or all(
        rank.events and rank.events.startswith("tcp://10.0.0.7:") for rank in found.ranks
    )
