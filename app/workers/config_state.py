"""The state of a configuration as a message between workers."""

from __future__ import annotations

import msgspec

from ...configs.decode import decode
from ...configs.file_watch import FileState
from ...configs.schema import KVAtlasConfig
from ...routing.plan.live import ConfigState


class _Message(msgspec.Struct, array_like=True):
    """A `ConfigState` with the configuration in the form of a file."""

    generation: int
    config: dict[str, object]
    refusals: dict[str, str]
    seen: dict[str, FileState]


def encoded_state(state: ConfigState) -> bytes:
    """Serialize the state for the other workers. Cost: O(endpoints)."""
    config: dict[str, object] = msgspec.to_builtins(state.config, enc_hook=_exactly)
    return msgspec.msgpack.encode(_Message(state.generation, config, dict(state.refusals), dict(state.seen)))


def _exactly(value: object) -> str:
    """Write a duration, the only type that needs this, to the picosecond and of any length."""
    return f"{value:.12f}s"


def decoded_state(data: bytes, *, like: KVAtlasConfig) -> ConfigState:
    """Decode the output of `encoded_state`, with the ports and folders of `like`, which differ by worker.

    Raises:
        msgspec.DecodeError: the bytes are no state.
    """
    state = msgspec.msgpack.decode(data, type=_Message)
    config = decode(state.config, KVAtlasConfig)
    if isinstance(config, list):
        raise msgspec.DecodeError("; ".join(map(str, config)))
    own = msgspec.structs.replace(config, server=like.server, snapshot=like.snapshot, recorder=like.recorder)
    return ConfigState(state.generation, own, state.refusals, state.seen)
