"""Who may publish to a bound socket."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
import zmq
from zmq.utils.z85 import decode

from kvatlas.events.admission import Access, Connections, CurveKeys

KNOWN, UNKNOWN, OWN = (zmq.curve_keypair()[0] for _ in range(3))
KEYS = CurveKeys(OWN, b"", frozenset({KNOWN}))


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("10.1.2.3", None),
        ("::ffff:10.1.2.3", None),
        ("fe80::1%eth0", None),
        ("", None),
        ("11.1.2.3", "address"),
        ("2001:db8::1", "address"),
        ("localhost", "address"),
    ],
)
def test_peer_is_admitted_by_its_network(address: str, refusal: str | None) -> None:
    access = Access(networks=(ip_network("10.0.0.0/8"), ip_network("fe80::/10")))
    assert access.refusal(address, None, n_connections=0) == refusal


@pytest.mark.parametrize(
    ("key", "refusal"), [(KNOWN, None), (UNKNOWN, "key"), (None, "key")], ids=["known", "unknown", "none"]
)
def test_peer_is_admitted_by_its_key(key: bytes | None, refusal: str | None) -> None:
    access = Access(networks=(ip_network("10.0.0.0/8"),), curve=KEYS)
    assert access.refusal("10.0.0.1", decode(key) if key else None, n_connections=0) == refusal


def test_connections_are_counted_from_the_reports_of_the_socket() -> None:
    connections = Connections(n_expected=2)
    for event in (
        zmq.Event.HANDSHAKE_SUCCEEDED,
        zmq.Event.HANDSHAKE_FAILED_AUTH, zmq.Event.DISCONNECTED,  # one that was refused
        zmq.Event.HANDSHAKE_FAILED_NO_DETAIL, zmq.Event.DISCONNECTED,  # one that left too early
    ):  # fmt: skip
        connections.note(event)
    assert (connections.n_open, connections.n_admitted) == (1, 1)
    connections.note(zmq.Event.DISCONNECTED)
    assert connections.n_admitted == 0
    access = Access(networks=(ip_network("10.0.0.0/8"),), max_connections=2)
    assert [access.refusal("10.0.0.1", None, n_connections=n) for n in (1, 2)] == [None, "connections"]
