"""The snapshot of the fleet: read at the start, written periodically and at the end, and given to replicas that start.

The ledger and the stream position of a rank are saved at the same moment. Other tasks run between two ranks, and files are
read and written in a thread. Shared tiers are saved last. Blocks that a rank stored there after it was saved come again
with the replay after the start, and applying them twice changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import msgspec

from ..configs.endpoints import EndpointAddresses
from ..configs.schema import SnapshotConfig
from ..events.tasks import keep
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
from .rank import Rank
from .roster import Wanted
from .snapshot_merge import newest_of

log = logging.getLogger(__name__)

APPLYING_S = 2.0
"""Longest wait for the rest of a batch that a rank has applied in part; an endpoint that takes longer is not saved."""


class Snapshots:
    """The snapshot file of one fleet. Call `read`, then `take` for each added endpoint, then `begin`, and `stop` at the end.

    Args:
        config: file and interval; without a file nothing is read or written.
        fleet: the fleet.
        models: names of the served model.
        wanted: returns the desired state of an endpoint; None if it is not saved. Registered instances are not saved,
            because clients register them again, and their address may then belong to another one.
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
        self._origin = f"{self._path}"
        """Where the snapshot is from, for the log."""
        self._n_taken = self._n_blocks = 0
        self._failure = ""
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        metrics.age_seconds.set_function(lambda: time.time() - self._created)

    @contextlib.contextmanager
    def loading(self) -> Generator[None]:
        """Pause garbage collection while endpoints are added with the results of `take`.

        Loaded state contains no garbage, and scanning it takes as long as loading it.
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
        """Return whether the snapshot has usable state for an endpoint that will be added."""
        saved = self._snapshot.endpoints.get(name) if self._snapshot is not None else None
        return saved is not None and not self._difference(saved, wanted)

    def take(self, name: str, wanted: Wanted) -> SavedEndpoint | None:
        """Remove and return the saved state of an endpoint that will be added, None if there is no usable state.

        The first endpoint of a space also loads the shared tiers of that space.
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
        """Drop the state that no endpoint took, and start to write; call it after all endpoints were added."""
        if self._snapshot is not None:
            left_out = [f"{name} ({self._reason(each)})" for name, each in self._snapshot.endpoints.items()]
            log.info(
                "snapshot %s of kvatlas %s, %.0f s old: %d endpoint(s) restored with %d blocks%s%s", self._origin,
                self._snapshot.head.kvatlas, time.time() - self._created, self._n_taken, self._n_blocks,
                "; left out: " if left_out else "", ", ".join(left_out),
            )  # fmt: skip
            self._snapshot = None
        if self._config.file and self._task is None:
            self._task = keep(self._keep, "snapshots", needed=False)

    async def stop(self) -> None:
        """Write a last time, if writing has begun."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def write(self) -> None:
        """Replace the file; a failure is counted, and logged if it differs from the last one."""
        begin, created = time.monotonic(), time.time()
        try:
            n_bytes = await self._write_file(created)
        except OSError as error:
            self._metrics.failures.inc()
            self._metrics.failing.set(1)
            if str(error) != self._failure:
                self._failure = str(error)
                log.warning(
                    "snapshot %s cannot be written: %s; set snapshot.file to a file in a folder that kvatlas may "
                    "write to, with space for twice its size", self._path, error,
                )  # fmt: skip
            return
        self._failure, self._created = "", created
        self._metrics.writes.inc()
        self._metrics.failing.set(0)
        self._metrics.size_bytes.set(n_bytes)
        self._metrics.write_seconds.observe(time.monotonic() - begin)

    async def save(self, endpoint: Endpoint) -> SavedEndpoint | None:
        """Return the state of an endpoint for the file, None if it is not saved, was removed meanwhile, or is too busy."""
        if (wanted := self._wanted(endpoint.name)) is None:
            return None
        ranks: list[SavedRank] = []
        for rank in list(endpoint.ranks):
            if self._fleet.get(endpoint.name) is not endpoint:
                return None
            if not await _between_batches(rank):
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

    async def read(self, given: Snapshot | None = None, *, giver: str = "") -> None:
        """Read the file; an unusable file is logged and ignored.

        Args:
            given: snapshot that a sibling made now, None without one. Of endpoints that are in both, the one is used whose
                stream is further.
            giver: name of that sibling, for the log.
        """
        if self._config.file:
            await self._read_own()
        if given is not None:
            has_own = self._snapshot is not None
            self._snapshot = newest_of(self._snapshot, given) if self._snapshot is not None else given
            self._origin = f"of replica {giver}" + (f" and {self._path}" if has_own else "")
            self._created = time.time()
        if self._snapshot is not None:
            for medium in self._snapshot.fleet.media:
                self._atlas.tiers.of(medium)

    async def decode(self, pieces: Sequence[bytes]) -> Snapshot:
        """Return the snapshot that a sibling made now.

        Raises:
            SnapshotError: it is damaged, or was made under another configuration.
        """

        def decoded() -> Snapshot:
            # clocks of two machines are not compared
            return read_snapshot(b"".join(pieces), self._head(time.time()), max_age_s=None)

        return await asyncio.to_thread(decoded)

    async def pieces(self, created: float, *, with_tokens: bool = True) -> AsyncGenerator[bytes]:
        """Yield the snapshot of this moment, in the order of the file. The event loop is free between two ranks.

        Args:
            created: wall-clock seconds of this moment.
            with_tokens: whether to include events that wait for their parent block, which have token ids.
        """
        encoder, spaces = SnapshotEncoder(), set[str]()
        yield encoder.start(self._head(created))
        for endpoint in list(self._fleet):
            if (saved := await self.save(endpoint)) is not None:
                saved = saved if with_tokens else saved.without_tokens()
                yield await asyncio.to_thread(encoder.endpoint, saved)
                spaces.add(endpoint.instance.space)
        shared = {space: self._atlas.dump_shared(space) for space in spaces}
        yield encoder.end(SavedFleet(media=self._atlas.tiers.unknown_media, shared=shared))

    async def _read_own(self) -> None:
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

    def _reason(self, saved: SavedEndpoint) -> str:
        """Return why no endpoint took the saved state."""
        wanted = self._wanted(saved.name)
        return "no longer there" if wanted is None else self._difference(saved, wanted) or "added meanwhile"

    def _difference(self, saved: SavedEndpoint, wanted: Wanted) -> str:
        """Return why the saved state of an endpoint is unusable; empty if it is usable."""
        if saved.addresses != _text(wanted.addresses):
            return "its addresses changed"
        if saved.uid != wanted.uid:
            return "another pod has its name"
        if time.time() - self._created > self._config.max_age:  # discovery may have taken long
            return "too old by the time it was discovered"
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
        """Write the file; return its size."""
        file = await asyncio.to_thread(Replacement, self._path)
        try:
            async for piece in self.pieces(created):
                await asyncio.to_thread(file.write, piece)
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


def _text(addresses: EndpointAddresses) -> str:
    """Write the addresses as the file keeps them; texts are compared, never parsed."""
    serving = str(addresses.serving) if addresses.serving is not None else None
    # the same server wherever it is scraped, and the same publisher with or without a snapshot address
    ranks = [
        {key: value for key, value in asdict(rank).items() if key != "snapshots"} for rank in addresses.ranks
    ]
    written = {**asdict(addresses), "serving": serving, "ranks": ranks}
    del written["metrics"]
    return msgspec.json.encode(written).decode()


async def _between_batches(rank: Rank) -> bool:
    """Wait while a batch of the rank is applied in part; return whether none is."""
    subscription, begin = rank.subscription, time.monotonic()
    while subscription is not None and subscription.is_amid_batch:
        if time.monotonic() > begin + APPLYING_S:
            return False
        await asyncio.sleep(0)
    return True
