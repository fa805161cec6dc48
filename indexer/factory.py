"""The choice of the index implementation: the native core, or the Python reference if it was not built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from ..events.model import Batch
from ..events.wire import decode_batch
from .errors import CoreMissingError
from .index import BlockIndex
from .keys import PrefixKeys, prefix_keys
from .ledger import RankLedger
from .reference import ReferenceIndex
from .reuse_distance import ReferenceReuseDistances, ReuseDistances

CoreName = Literal["native", "reference"]


class MakeReuseDistances(Protocol):
    """Constructor of reuse distances."""

    def __call__(
        self, *, max_keys: int, max_capacity: int | None, half_life_s: float | None
    ) -> ReuseDistances:
        """Create the reuse distances of one endpoint; see `ReferenceReuseDistances`."""
        ...


@dataclass(frozen=True, slots=True)
class IndexCore:
    """One implementation; its parts belong together.

    Attributes:
        name: native or reference.
        make_index: creates the block index for one block size.
        prefix_keys: computes block keys.
        decode_batch: decodes engine payloads.
        ledger: ledger of one publisher in an index of this core; fastest with batches from `decode_batch`.
        reuse_distances: follows the prompts of one endpoint.
    """

    name: CoreName
    make_index: Callable[[], BlockIndex]
    prefix_keys: PrefixKeys
    decode_batch: Callable[[bytes], Batch]
    ledger: type[RankLedger]
    reuse_distances: MakeReuseDistances


REFERENCE = IndexCore(
    "reference", ReferenceIndex, prefix_keys, decode_batch, RankLedger, ReferenceReuseDistances
)
"""The specification of an index; always available."""

_native: IndexCore | None
try:
    from ..events.native_batch import decode_batch as native_decode_batch
    from .native_index import NativeIndex
    from .native_index import prefix_keys as native_prefix_keys
except ImportError:  # installed without a C++ compiler
    _native = None
else:
    from .native_ledger import NativeLedger
    from .native_reuse import NativeReuseDistances

    _native = IndexCore(
        "native",
        NativeIndex,
        native_prefix_keys,
        native_decode_batch,
        NativeLedger,
        NativeReuseDistances,
    )


def index_core(name: str | None = None) -> IndexCore:
    """Return the implementation called `name`; None selects the native core, or the reference if it was not built.

    Raises:
        CoreMissingError: the name is unknown, or the native core was not built.
    """
    if name is None:
        return _native or REFERENCE
    if name not in get_args(CoreName):
        raise CoreMissingError(f"no index core is called {name!r}: use {' or '.join(get_args(CoreName))}")
    if name == "reference":
        return REFERENCE
    if _native is None:
        raise CoreMissingError(
            "the native index core was not built: install kvatlas with a C++20 compiler, or use 'reference'"
        )
    return _native
