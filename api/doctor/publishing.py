"""The flags of engines that make them publish their KV events where this process listens."""

from __future__ import annotations

from ...configs.schema import EventsConfig
from ...fleet.endpoint import Endpoint

_PUBLISHER = '"enable_kv_cache_events": true, "publisher": "zmq"'
LONGER = 'in the engine\'s --kv-events-config: "buffer_steps": 100000'
"""Flag of vLLM with which its history reaches further back."""
OTHERS = {
    "sglang": '--kv-events-config \'{{"publisher": "zmq", "endpoint": "{events}", "replay_endpoint": "{replay}"}}\'',
    "trtllm-serve": "in its --config: kv_events_config: {{enable_kv_cache_events: true, publisher: zmq, endpoint: {events!r}, "
    "replay_endpoint: {replay!r}}}",
}
"""What makes engines other than vLLM publish."""


def publishing(config: EventsConfig, endpoint: Endpoint | None = None, *, engine: str | None = None) -> str:
    """Return the engine's flag that makes it publish where this process listens.

    Args:
        config: of this process.
        endpoint: that is to publish; None for the usual ports.
        engine: its engine, as in `OTHERS`; None or another name for vLLM.
    """
    first = endpoint.ranks[0].subscription if endpoint is not None else None
    is_bound = config.mode == "bind"
    if is_bound:
        address = config.bind.replace("*", "HOST-OF-KVATLAS")
    else:
        address = _own(first.events) if first is not None else f"tcp://*:{config.port}"
    if engine in OTHERS:
        replay = _own(first.replay) if first is not None and first.replay else ""
        return OTHERS[engine].format(events=address, replay=replay)
    replay = "" if is_bound else f", {_replay(config, endpoint)}"
    return f'vllm serve --kv-events-config \'{{{_PUBLISHER}, "endpoint": "{address}"{replay}}}\''


def _replay(config: EventsConfig, endpoint: Endpoint | None = None) -> str:
    first = endpoint.ranks[0].subscription if endpoint is not None else None
    address = _own(first.replay) if first is not None and first.replay else f"tcp://*:{config.replay_port}"
    return f'"replay_endpoint": "{address}"'


def replaying(config: EventsConfig, endpoint: Endpoint | None = None) -> str:
    """Return the flag with which it sends its history again."""
    return f'in the engine\'s --kv-events-config: {_replay(config, endpoint)}; and no `replay: ""` of the endpoint'


def _own(address: str) -> str:
    """Return the address as the engine itself writes it."""
    scheme, _, rest = address.partition("://")
    return f"tcp://*:{rest.rpartition(':')[2]}" if scheme == "tcp" else address
