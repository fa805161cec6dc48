"""Which implementation of the index runs: the native core, or the Python reference where it was not built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from .errors import CoreMissingError
from .index import BlockIndex
from .keys import PrefixKeys, prefix_keys
from .reference import ReferenceIndex

CoreName = Literal["native", "reference"]


@dataclass(frozen=True, slots=True)
class IndexCore:
    """One implementation.

    Attributes:
        name: which one.
        make_index: makes the block index for one block size.
        prefix_keys: makes block keys.
    """

    name: CoreName
    make_index: Callable[[], BlockIndex]
    prefix_keys: PrefixKeys


_REFERENCE = IndexCore("reference", ReferenceIndex, prefix_keys)
_native: IndexCore | None
try:
    from .native_index import NativeIndex
    from .native_index import prefix_keys as native_prefix_keys

    _native = IndexCore("native", NativeIndex, native_prefix_keys)
except ImportError:  # installed without a C++ compiler
    _native = None


def index_core(name: str | None = None) -> IndexCore:
    """The implementation called `name`; None takes the native core, or the reference when there is none.

    Raises:
        CoreMissingError: the name is unknown, or the native core was not built.
    """
    if name is None:
        return _native or _REFERENCE
    if name not in get_args(CoreName):
        raise CoreMissingError(f"no index core is called {name!r}: use {' or '.join(get_args(CoreName))}")
    if name == "reference":
        return _REFERENCE
    if _native is None:
        raise CoreMissingError(
            "the native index core was not built: install kvatlas where a C++20 compiler is, or use 'reference'"
        )
    return _native
