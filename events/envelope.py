"""Events in the standard envelope, as cache stores publish them: maps with `event_type`, `seq_hashes` and `backend_id`.

A store that has only the names of its objects (Mooncake's master) sends the name too. Two forms of names are known: a
standard sequence hash as a number, and the key of an engine's connector, which ends in the engine's own hash.
Source: Mooncake RFC #1527 and its publisher's design page; keys of vLLM's and vLLM Ascend's Mooncake store connectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from .errors import WireError
from .fields import Fields
from .model import (
    STORE_MEDIA_PREFIX,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    HashSpace,
    MediumName,
)

MAX_OBJECT_KEY = 1024
"""Longest name of an object that is read."""

_KNOWN_TAGS = frozenset({None, "BlockStored", "BlockRemoved", "AllBlocksCleared"})
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})\Z")
_DIGEST = re.compile(r"[0-9a-fA-F]{16,128}\Z")
_SHARD = re.compile(r"(?:tp_rank:|head_or_tp_rank:|pp_rank:|pcp|dcp)([0-9]{1,6})\Z")
_GROUP = re.compile(r"group:([0-9]{1,6})\Z")
_LAYER = re.compile(r"[0-9]{1,6}\Z")
_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The name of one object of a store.

    Attributes:
        engine_hash: hash of its block, low 64 bits.
        space: meaning of the hash.
        group: KV-cache group of the engine, 0 if the name has none.
        is_first_shard: whether it is the first part of the block, of the parts of all ranks and layers.
    """

    engine_hash: int
    space: HashSpace
    group: int = 0
    is_first_shard: bool = True


def parse_object_key(name: str) -> ObjectKey | None:
    """Return the meaning of an object's name, None if its form is unknown. Cost: O(length)."""
    if len(name) > MAX_OBJECT_KEY:
        return None
    if _NUMBER.match(name):
        number = int(name, 16) if name[:2] in ("0x", "0X") else int(name)
        return ObjectKey(number, HashSpace.STANDARD) if number <= _U64 else None
    *fields, last = name.split("@")
    layer = 0
    if fields and _LAYER.match(last):
        layer = int(last)
        last = fields.pop()
    ranks = [int(found[1]) for field in fields if (found := _SHARD.match(field))]
    if not ranks or not _DIGEST.match(last):
        return None
    group = next((int(found[1]) for field in fields if (found := _GROUP.match(field))), 0)
    return ObjectKey(int(last[-16:], 16), HashSpace.FLEET, group, not any(ranks) and not layer)


def is_envelope(fields: Fields) -> bool:
    """Return whether the map is an event in the standard envelope, with or without the fields of vLLM's form beside it."""
    tag = fields.get("type")
    return "event_type" in fields and (tag is None or (isinstance(tag, str) and tag in _KNOWN_TAGS))


def read_envelope(fields: Fields, as_engine: Callable[[str, Callable[[str], object]], Event]) -> Event:
    """Return the event in an envelope.

    Args:
        fields: of the event.
        as_engine: reads an event in an engine's form, from its tag and a getter of fields.
    Raises:
        WireError: the event is unreadable.
    """
    kind = fields.get("event_type")
    tenant = fields.get("tenant_id")
    if tenant is not None and (not isinstance(tenant, str) or len(tenant) > MAX_OBJECT_KEY):
        raise WireError("bad_tenant", f"tenant_id is {type(tenant).__name__}, want a short string")
    named = _object_key(fields)
    match kind:
        case "cleared":
            return AllBlocksCleared(medium=_cleared(fields.get("medium")), everywhere=True, tenant=tenant)
        case "stored" | "removed":
            event = as_engine("BlockStored" if kind == "stored" else "BlockRemoved", _getter(fields, named))
        case _:
            raise WireError("unknown_tag", f"event_type is an unknown {type(kind).__name__}")
    space = HashSpace.OWN
    if named is not None:
        space = named.space
    elif not (isinstance(event, BlockStored) and event.tokens):
        space = HashSpace.STANDARD  # without tokens the hashes are the standard ones, says the specification
    if isinstance(event, BlockStored):
        salt = _salt(fields) if space is HashSpace.OWN else None  # it is part of all other hashes
        return replace(event, space=space, tenant=tenant, additional_salt=salt)
    assert isinstance(event, BlockRemoved)  # noqa: S101 - of two kinds
    return BlockRemoved(event.hashes, event.medium, event.group, space, tenant)


def _salt(fields: Fields) -> str | None:
    salt = fields.get("additional_salt")
    if salt is not None and (not isinstance(salt, str) or len(salt) > MAX_OBJECT_KEY):
        raise WireError("bad_salt", f"additional_salt is {type(salt).__name__}, want a short string")
    return salt or None


def _object_key(fields: Fields) -> ObjectKey | None:
    """Return what the event's object is, from its name or from the fields that its publisher has read from the name."""
    name, digest = fields.get("object_key"), fields.get("connector_block_hash")
    if isinstance(name, str) and (parsed := parse_object_key(name)) is not None:
        return parsed
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        return None
    parts = ("tp_rank", "head_or_tp_rank", "pcp_rank", "dcp_rank", "pp_rank", "layer_id")
    group = fields.get("group_id")
    return ObjectKey(
        int(digest[-16:], 16),
        HashSpace.FLEET,
        group if type(group) is int and 0 <= group < 1 << 31 else 0,
        not any(fields.get(part) for part in parts),
    )


def _getter(fields: Fields, named: ObjectKey | None) -> Callable[[str], object]:
    """Return a getter that gives the fields by the names of an engine's event."""
    hashes = fields.get("seq_hashes", fields.get("block_hashes"))
    medium = fields.get("medium")
    is_object = named is not None or "object_key" in fields
    if named is not None:
        # of a block's parts one is counted: the store publishes each, and none tells how many there are
        hashes = [named.engine_hash] if named.is_first_shard else []
    if is_object and (medium is None or isinstance(medium, str)):
        medium = STORE_MEDIA_PREFIX + (medium or "CPU")
    values: dict[str, object] = {
        "block_hashes": hashes,
        "parent_block_hash": fields.get("parent_hash", fields.get("parent_block_hash")),
        "token_ids": fields.get("token_ids"),
        "block_size": fields.get("block_size"),
        "medium": medium,
        "lora_name": fields.get("lora_name") or None,
        "group_idx": named.group if named is not None else fields.get("group_idx"),
    }
    return values.get


def _cleared(medium: object) -> MediumName | None:
    if medium is None:
        return None
    if not isinstance(medium, str) or not 0 < len(medium) <= MAX_OBJECT_KEY:
        raise WireError("bad_medium", f"medium is {type(medium).__name__}, want a short string")
    return MediumName(medium.upper())
