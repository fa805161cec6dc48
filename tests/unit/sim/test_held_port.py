"""Ports that keep their owner while nothing listens on them."""

from __future__ import annotations

import socket

import pytest
import zmq

from kvatlas.sim.held_port import HeldPort


def test_held_port_refuses_connections() -> None:
    port = HeldPort()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number), timeout=5)


def test_server_listens_on_its_held_port_again_and_again() -> None:
    port = HeldPort()
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port.number)),
            socket.create_connection(("127.0.0.1", port.number), timeout=5),
        ):
            pass


def test_zmq_socket_binds_to_a_held_port() -> None:
    port = HeldPort()

    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.bind(f"tcp://127.0.0.1:{port.number}")


def test_port_held_on_every_address_serves_each_of_them() -> None:
    port = HeldPort("0.0.0.0")
    with socket.create_server(("127.0.0.1", port.number)), socket.create_server(("127.0.0.2", port.number)):
        pass


def test_held_port_is_given_to_nobody_else() -> None:
    port = HeldPort()

    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port.number))


def test_port_is_released_with_its_owner() -> None:
    address = "127.77.0.1"  # an address of no other test, which could take the port first
    port = HeldPort(address)
    number = port.number
    del port

    with socket.socket() as other:
        other.bind((address, number))


def test_port_that_somebody_listens_on_cannot_be_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        HeldPort(number=taken.getsockname()[1])
