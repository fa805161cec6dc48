"""A configuration's state as workers tell it each other."""

from __future__ import annotations

import msgspec

from ...configs.decode import decode
from ...configs.file_watch import FileState
from ...configs.schema import KVAtlasConfig
from ...routing.plan.live import ConfigState


class _Told(msgspec.Struct, array_like=True):
    """As `ConfigState`, with the configuration as a file has it."""

    generation: int
    config: dict[str, object]
    refusals: dict[str, str]
    seen: dict[str, FileState]


def encoded_state(state: ConfigState) -> bytes:
    """To be told. Cost: O(endpoints)."""
    config: dict[str, object] = msgspec.to_builtins(state.config, enc_hook=_exactly)
    return msgspec.msgpack.encode(_Told(state.generation, config, dict(state.refusals), dict(state.seen)))


def _exactly(value: object) -> str:
    """A duration, the only type that needs this, to the picosecond and however long."""
    return f"{value:.12f}s"


def decoded_state(told: bytes, *, like: KVAtlasConfig) -> ConfigState:
    """What `encoded_state` made, with the ports and folders of `like`, which every worker has of its own.

    Raises:
        msgspec.DecodeError: nothing that it makes.
    """
    state = msgspec.msgpack.decode(told, type=_Told)
    config = decode(state.config, KVAtlasConfig)
    if isinstance(config, list):
        raise msgspec.DecodeError("; ".join(map(str, config)))
    own = msgspec.structs.replace(config, server=like.server, snapshot=like.snapshot, recorder=like.recorder)
    return ConfigState(state.generation, own, state.refusals, state.seen)
