"""The available index cores: the reference, and the native one if it was built."""

from __future__ import annotations

from kvatlas.indexer.factory import index_core

CORES = {core.name: core for core in (index_core("reference"), index_core())}
