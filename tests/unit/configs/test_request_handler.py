"""`requestHandler` in files of the reference picker, and the key that it replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvatlas.configs.loader import load_file


def write(folder: Path, **sections: object) -> Path:
    plugins = [{"type": kind} for kind in ("queue-scorer", "openai-parser", "passthrough-parser")]
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
