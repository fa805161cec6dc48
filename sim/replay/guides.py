"""Guides of the reference picker, as configurations."""

from __future__ import annotations

from ...configs.reading import GivenText
from ...configs.schema import KVAtlasConfig
from ...routing.plan.load import load_scheduled

_OPTIMIZED_BASELINE = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: approx-prefix-cache-producer},
  {type: prefix-cache-scorer}, {type: no-hit-lru-scorer}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: no-hit-lru-scorer, weight: 2}
"""
_TIERED = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: no-hit-lru-scorer}
- {type: approx-prefix-cache-producer, name: gpu}
- {type: approx-prefix-cache-producer, name: cpu, parameters: {autoTune: false, lruCapacityPerServer: 82000}}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer, name: gpu-prefix, parameters: {prefixMatchInfoProducerName: gpu}}
- {type: prefix-cache-scorer, name: cpu-prefix, parameters: {prefixMatchInfoProducerName: cpu}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: kv-cache-utilization-scorer}, {pluginRef: gpu-prefix},
    {pluginRef: cpu-prefix}, {pluginRef: no-hit-lru-scorer}]
"""
GUIDES = {"optimized-baseline": _OPTIMIZED_BASELINE, "tiered": _TIERED}
"""Name -> the guide's file."""


def guide(name: str) -> KVAtlasConfig:
    """Return the configuration of a guide, which is one of `GUIDES`."""
    return load_scheduled(None, GivenText(name, GUIDES[name])).config
