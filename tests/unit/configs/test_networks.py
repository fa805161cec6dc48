"""Networks in configuration files."""

from __future__ import annotations

import pytest

from kvatlas.configs.networks import allows, parse_network


@pytest.mark.parametrize(
    ("networks", "host", "is_allowed"),
    [
        pytest.param(["10.0.0.0/8"], "10.1.2.3", True, id="inside"),
        pytest.param(["10.0.0.0/8"], "11.1.2.3", False, id="outside"),
        pytest.param(["10.0.0.0/8", "fd00::/8"], "fd00::1", True, id="ipv6"),
        pytest.param(["10.0.0.0/8"], "::ffff:10.0.0.1", True, id="ipv4_as_ipv6"),
        pytest.param(["10.0.0.7"], "10.0.0.7", True, id="address"),
        pytest.param(["0.0.0.0/0", "::/0"], "engine", False, id="name"),
        pytest.param([], "10.0.0.1", False, id="none"),
    ],
)
def test_address_is_in_a_network(networks: list[str], host: str, is_allowed: bool) -> None:
    assert allows([parse_network(text) for text in networks], host) == is_allowed


@pytest.mark.parametrize("text", ["10.0.0.1/8", "engine", "", "10.0.0.0/33"])
def test_network_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a network such as"):
        parse_network(text)
