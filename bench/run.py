"""All sections in one run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress

from .columns import Column
from .filled import filled
from .results import Section
from .sections.contention import measure_contention
from .sections.ingest import measure_ingest
from .sections.keys import measure_keys
from .sections.match import measure_match
from .sections.memory import measure_memory
from .sections.removal import measure_removal
from .sections.scale import measure_scale, scale_section
from .sections.stores import measure_stores
from .sizes import Size


async def run(size: Size, columns: Sequence[Column], progress: Progress) -> list[Section]:
    """Every section, in the order to show.

    What runs in processes of its own comes while the filled indexes get their huge pages, for which the system takes its
    time. Removal leaves less behind than there was, so it comes last.

    Raises:
        SystemExit: columns do not agree on a result, or a process died.
    """
    async with filled(size.fleet, columns, progress) as everything:
        ingest = measure_ingest(columns, size, progress)
        scale = measure_scale(columns, size, progress)
        memory = measure_memory(columns, scale, size, progress)
        match = await measure_match(everything, size, progress)
        contention = await measure_contention(everything, size, progress)
        stores = measure_stores(everything, size, progress)
        keys = measure_keys(columns, size, progress)
        removal = await measure_removal(everything, size, progress)
    return [*match, contention, ingest, stores, memory, removal, scale_section(scale), keys]
