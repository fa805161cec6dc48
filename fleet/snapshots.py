"""The snapshot of what was learned: read at the start, written now and then and at the end.

Each rank is saved at one moment, its books and its stream position together; the loop runs on between two ranks, and
files are read and written in a thread. Shared tiers come last: what a rank stored there after it was saved is told
again by the replay that follows a start, and telling it twice changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import msgspec

from ..configs.endpoints import EndpointAddresses
from ..configs.schema import SnapshotConfig
from ..events.sockets import spawn
from ..indexer.errors import SnapshotError
from ..indexer.snapshot import (
    MAX_FILE_BYTES,
    SavedEndpoint,
    SavedFleet,
    SavedHead,
    SavedRank,
    Snapshot,
    SnapshotEncoder,
    read_snapshot,
    saved_tiers,
)
from .atomic_file import Replacement
from .endpoint import Endpoint
from .fleet import Fleet
from .instance import Instance
from .metrics import SnapshotMetrics
from .roster import Wanted

log = logging.getLogger(__name__)


class Snapshots:
    """Keeps one fleet's snapshot file: `read`, `take` for each endpoint that is added, `begin` to write, `stop`.

    Args:
        config: where and how often; without a file nothing is read and nothing written.
        fleet: the fleet.
        models: names of the served model.
        wanted: an endpoint as its source has it; None for one that is not saved. Whoever registered an instance
            registers it again, at an address that may by then be another's.
        metrics: counters.
    """

    def __init__(
        self,
        config: SnapshotConfig,
        *,
        fleet: Fleet,
        models: Iterable[str],
        wanted: Callable[[str], Wanted | None],
        metrics: SnapshotMetrics,
    ) -> None:
        self._config, self._path = config, Path(config.file)
        self._fleet, self._atlas, self._metrics = fleet, fleet.atlas, metrics
        self._models, self._wanted = frozenset(models), wanted
        self._created = math.nan
        self._snapshot: Snapshot | None = None
        self._n_taken = self._n_blocks = 0
        self._failure = ""
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        metrics.age_seconds.set_function(lambda: time.time() - self._created)

    @contextlib.contextmanager
    def loading(self) -> Generator[None]:
        """Within, endpoints are added with what `take` gives.

        Collection of garbage pauses: what is loaded is none, and looking through it takes as long as loading it.
        """
        n_taken = self._n_taken
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
        if self._n_taken > n_taken:
            gc.freeze()

    def has(self, name: str, wanted: Wanted) -> bool:
        """Whether an endpoint that is about to be added can go on from what was saved of it."""
        saved = self._snapshot.endpoints.get(name) if self._snapshot is not None else None
        return saved is not None and not self._difference(saved, wanted)

    def take(self, name: str, wanted: Wanted) -> SavedEndpoint | None:
        """What was saved of an endpoint that is about to be added, None when nothing was or it was another.

        With the first endpoint of a space its shared tiers are loaded.
        """
        if self._snapshot is None or not self.has(name, wanted):
            return None
        saved = self._snapshot.endpoints.pop(name)
        space = Instance(name).space
        self._atlas.load_shared(space, self._snapshot.fleet.shared.pop(space, ()))
        self._n_taken += 1
        self._n_blocks += sum(each.books.n_residencies for each in saved.ranks)
        return saved

    def begin(self) -> None:
        """Every endpoint was added: let go of what nobody took, and write from now on."""
        if self._snapshot is not None:
            left_out = [f"{name} ({self._reason(each)})" for name, each in self._snapshot.endpoints.items()]
            log.info(
                "snapshot %s of kvatlas %s, %.0f s old: %d endpoint(s) go on with %d blocks%s%s", self._path,
                self._snapshot.head.kvatlas, time.time() - self._created, self._n_taken, self._n_blocks,
                "; left out: " if left_out else "", ", ".join(left_out),
            )  # fmt: skip
            self._snapshot = None
        if self._config.file:
            self._task = spawn(self._keep(), "snapshots")

    async def stop(self) -> None:
        """Write a last time, if writing had begun."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def write(self) -> None:
        """Write the file anew; a failure is counted, and logged when it is another than the last one."""
        begin, created = time.monotonic(), time.time()
        try:
            n_bytes = await self._write_file(created)
        except OSError as error:
            self._metrics.failures.inc()
            if str(error) != self._failure:
                self._failure = str(error)
                log.warning(
                    "snapshot %s cannot be written: %s; let snapshot.file name a file in a folder that kvatlas may "
                    "write to, with room for twice its size", self._path, error,
                )  # fmt: skip
            return
        self._failure, self._created = "", created
        self._metrics.writes.inc()
        self._metrics.size_bytes.set(n_bytes)
        self._metrics.write_seconds.observe(time.monotonic() - begin)

    async def save(self, endpoint: Endpoint) -> SavedEndpoint | None:
        """The endpoint as it goes into the file, rank by rank; None when it is not saved, or removed meanwhile."""
        if (wanted := self._wanted(endpoint.name)) is None:
            return None
        ranks: list[SavedRank] = []
        for rank in list(endpoint.ranks):
            if self._fleet.get(endpoint.name) is not endpoint:
                return None
            ranks.append(rank.dump(now=time.monotonic()))
            await asyncio.sleep(0)
        return SavedEndpoint(
            name=endpoint.name,
            addresses=_text(endpoint.addresses),
            uid=wanted.uid,
            started=endpoint.started,
            ranks=tuple(ranks),
        )

    async def read(self) -> None:
        """Read the file; one that cannot be gone on from is refused in one line, and the start goes on empty."""
        if not self._config.file:
            return
        try:
            self._snapshot = await asyncio.to_thread(self._read_file)
        except FileNotFoundError:
            log.info("no snapshot at %s: starting empty", self._path)
        except SnapshotError as error:
            self._metrics.refused.labels(error.reason).inc()
            log.warning(
                "snapshot %s is not used (%s): %s; starting empty, and the file is replaced in %s",
                self._path, error.reason, error, self._config.interval,
            )  # fmt: skip
        else:
            self._created = self._snapshot.head.created
            for medium in self._snapshot.fleet.media:
                self._atlas.tiers.of(medium)

    def _reason(self, saved: SavedEndpoint) -> str:
        """Why nobody took what was saved."""
        wanted = self._wanted(saved.name)
        return "no longer there" if wanted is None else self._difference(saved, wanted) or "added meanwhile"

    def _difference(self, saved: SavedEndpoint, wanted: Wanted) -> str:
        """Why an endpoint cannot go on from what was saved under its name; empty when it can."""
        if saved.addresses != _text(wanted.addresses):
            return "its addresses changed"
        if saved.uid != wanted.uid:
            return "another pod has its name"
        if time.time() - self._created > self._config.max_age:  # the API server may have kept us waiting
            return "too old by the time it was found"
        return ""

    async def _keep(self) -> None:
        stopped = False
        while not stopped:
            with contextlib.suppress(TimeoutError):
                stopped = await asyncio.wait_for(self._stopping.wait(), self._config.interval)
            await self.write()

    def _read_file(self) -> Snapshot:
        try:
            n_bytes = self._path.stat().st_size
            if n_bytes > MAX_FILE_BYTES:
                raise SnapshotError("size", f"it has {n_bytes} bytes, at most {MAX_FILE_BYTES} are read")
            data = self._path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SnapshotError("unreadable", f"it cannot be read: {error.strerror}") from None
        return read_snapshot(data, self._head(time.time()), max_age_s=self._config.max_age)

    async def _write_file(self, created: float) -> int:
        """Write everything; returns the file's size."""
        file, encoder = await asyncio.to_thread(Replacement, self._path), SnapshotEncoder()
        try:
            await asyncio.to_thread(lambda: file.write(encoder.start(self._head(created))))
            spaces: set[str] = set()
            for endpoint in list(self._fleet):
                if (saved := await self.save(endpoint)) is not None:
                    await asyncio.to_thread(_append, file, encoder, saved)
                    spaces.add(endpoint.instance.space)
            shared = {space: self._atlas.dump_shared(space) for space in spaces}
            fleet = SavedFleet(media=self._atlas.tiers.unknown_media, shared=shared)
            await asyncio.to_thread(lambda: file.write(encoder.end(fleet)))
            await asyncio.to_thread(file.commit)
        except BaseException:
            await asyncio.to_thread(file.discard)
            raise
        return file.n_bytes

    def _head(self, created: float) -> SavedHead:
        return SavedHead(
            kvatlas=version("kvatlas"),
            created=created,
            models=self._models,
            seed=self._atlas.seed,
            tiers=saved_tiers(self._atlas.tiers),
        )


def _append(file: Replacement, encoder: SnapshotEncoder, endpoint: SavedEndpoint) -> None:
    file.write(encoder.endpoint(endpoint))


def _text(addresses: EndpointAddresses) -> str:
    """Write the addresses as the file keeps them; texts are compared, never parsed."""
    serving = str(addresses.serving) if addresses.serving is not None else None
    return msgspec.json.encode({**asdict(addresses), "serving": serving}).decode()
