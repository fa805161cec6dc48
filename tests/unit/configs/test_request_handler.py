"""`requestHandler` in files of the reference picker, and the key that it replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvatlas.configs.loader import load_file
from kvatlas.configs.replicas import ReplicasConfig, ValkeyConfig
from kvatlas.configs.request_handler import RequestHandlerConfig
from kvatlas.configs.schema import KVAtlasConfig


def write(folder: Path, **sections: object) -> Path:
    types = ("queue-scorer", "openai-parser", "passthrough-parser", "redis-syncer")
    plugins = [{"type": kind} for kind in types]
    head = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": plugins}
    file = folder / "epp.yaml"
    file.write_bytes(msgspec.yaml.encode(head | sections))
    return file


def test_parsers_are_those_of_the_request_handler_and_of_the_older_key(tmp_path: Path) -> None:
    handler = {"parsers": [{"pluginRef": "openai-parser"}], "propagatePriority": True}

    one = load_file(write(tmp_path, requestHandler=handler)).config.request_handler
    both = load_file(
        write(tmp_path, requestHandler=handler, parser={"pluginRef": "passthrough-parser"})
    ).config.request_handler
    older = load_file(write(tmp_path, parser={"pluginRef": "openai-parser"})).config.request_handler

    assert ([each.plugin_ref for each in one.parsers], one.propagate_priority) == (["openai-parser"], True)
    assert [each.plugin_ref for each in both.parsers] == ["openai-parser", "passthrough-parser"]
    assert ([each.plugin_ref for each in older.parsers], older.propagate_priority) == (
        ["openai-parser"],
        False,
    )


def test_sections_count_beside_another_file_that_does_not_have_them(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        requestHandler={"parsers": [{"pluginRef": "openai-parser"}], "propagatePriority": True},
        dataLayer={"crossReplica": {"syncerPluginRef": "redis-syncer"}},
    )
    base = KVAtlasConfig(api_version="kvatlas/v1")
    own = msgspec.structs.replace(
        base,
        request_handler=RequestHandlerConfig(propagate_priority=True),
        replicas=ReplicasConfig("valkey", valkey=ValkeyConfig("own:1")),
    )

    alone, merged, kept = (load_file(file, base=each).config for each in (None, base, own))

    assert alone.request_handler.parsers
    assert alone.replicas.valkey.address == "localhost:6379"
    assert (merged.request_handler, merged.replicas) == (alone.request_handler, alone.replicas)
    assert (kept.request_handler, kept.replicas) == (own.request_handler, own.replicas)
