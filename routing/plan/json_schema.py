"""The JSON Schema of configuration files, for editors and for checks before a start."""

from __future__ import annotations

import json
from typing import Any

from ...configs.endpoint_picker import EndpointPickerConfig
from ...configs.json_schema import REFERENCE, definitions
from ...configs.schema import KVAtlasConfig
from ...scorers.builtin import builtin_registry


def json_schema() -> str:
    """Return the JSON Schema (2020-12) of both kinds of file, with the parameters of every plugin of kvatlas.

    Plugins of other packages are accepted with any parameters, which are checked at the start.
    """
    params = {
        plugin_type: blueprint.params
        for kind in builtin_registry().kinds
        for plugin_type in kind
        if (blueprint := kind.get(plugin_type)) is not None
    }
    found = definitions([KVAtlasConfig, EndpointPickerConfig, *params.values()])
    found["PluginConfig"]["allOf"] = [
        {
            "if": {"properties": {"type": {"const": plugin_type}}, "required": ["type"]},
            "then": {"properties": {"parameters": {"$ref": REFERENCE.format(schema.__name__)}}},
        }
        for plugin_type, schema in sorted(params.items())
    ]
    kinds = (KVAtlasConfig, EndpointPickerConfig)
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvatlas configuration",
        "anyOf": [{"$ref": REFERENCE.format(kind.__name__)} for kind in kinds],
        "$defs": found,
    }
    return json.dumps(schema, indent=2) + "\n"
