"""The recorder: keeps arrival times, lengths and shared blocks of routed requests for a replay, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ....configs.observers import RecorderConfig
from ....events.tasks import keep
from ....indexer.prefix import Prefix
from ....scorers.core.decision import Decision
from ...outcome import Completion
from ...router import Arrival
from .aliases import block_aliases
from .trace_files import TraceFiles
from .trace_line import MooncakeLine

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""Time between two writes."""

MAX_WAITING_KEYS = 2**21
"""Most block keys that wait to be written, 16 MiB: 45 seconds of 100 requests per second with 30,000 tokens each."""


class Fate(StrEnum):
    """The outcome of recording a request; the value is a label of counters."""

    RECORDED = "recorded"
    NO_PREFIX = "no_prefix"
    """Its token ids are not known."""
    CUT = "cut"
    """Only its first token ids are known."""
    SEVERAL_PROMPTS = "several_prompts"
    """It has several prompts, and only one is known."""
    TOO_LONG = "too_long"
    """It does not fit into a file."""
    OVERLOAD = "overload"
    """Too many requests waited to be written."""
    NOT_WRITTEN = "not_written"
    """The file could not be written."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A request that waits to be written; `n_output` is None if its response was not seen."""

    arrival: Arrival
    n_output: int | None


class Recorder:
    """Writes the trace of one process. For one event loop; files are written in a thread.

    Args:
        config: with a folder.

    Raises:
        RecorderError: the secret cannot be used.
    """

    def __init__(self, config: RecorderConfig) -> None:
        self.files = TraceFiles(
            Path(config.folder),
            max_bytes=config.max_mebibytes * 2**20,
            max_files=config.max_files,
            block_size=config.block_size,
            started=time.time(),
        )
        self.fates = dict.fromkeys(Fate, 0)
        """Requests by outcome; each number is changed by the loop alone, or by the thread alone."""
        self.failure = ""
        """Why the last write failed, empty if it succeeded."""
        self.n_without_output = 0
        """Recorded requests whose output is not known."""
        self._aliases = block_aliases(config.key_file)
        self._block_size = config.block_size
        self.began_at = time.monotonic()
        """Start of the times in the trace."""
        self._waiting: list[_Ended] = []
        self._n_waiting_keys = 0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def n_waiting(self) -> int:
        """Requests that wait to be written."""
        return len(self._waiting)

    def start(self) -> None:
        """Start writing."""
        self._task = keep(self._keep, "recorder", needed=False)

    async def stop(self) -> None:
        """Write the waiting requests, and stop."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            await asyncio.to_thread(self.files.close)

    def routed(self, decision: Decision, prefix: Prefix | None) -> Arrival | None:
        """Return what is kept of a request until `ended`; None if it cannot be recorded.

        Cost: O(tokens), about 1 us per thousand with the native core.
        """
        if prefix is None or decision.no_prefix_reason is not None or not prefix.n_tokens:
            self.fates[Fate.NO_PREFIX] += 1
        elif decision.cut_reason is not None:
            self.fates[Fate.CUT] += 1
        elif decision.n_prompts != 1:
            self.fates[Fate.SEVERAL_PROMPTS] += 1
        else:
            keys = prefix.covering_keys(self._block_size)
            return Arrival(decision.at, prefix.n_tokens, keys)
        return None

    def ended(self, completion: Completion) -> None:
        """Queue an ended request for writing."""
        route = completion.route
        arrival = route.arrival if route is not None else None
        if route is None or arrival is None:
            return
        if self._n_waiting_keys + len(arrival.keys) > MAX_WAITING_KEYS:
            self.fates[Fate.OVERLOAD] += 1
            return
        n_output = completion.response.output_tokens(route.decision)
        self._waiting.append(_Ended(arrival, n_output))
        self._n_waiting_keys += len(arrival.keys)

    async def _keep(self) -> None:
        stopped = False
        while not stopped:
            with contextlib.suppress(TimeoutError):
                stopped = await asyncio.wait_for(self._stopping.wait(), FLUSH_S)
            if self._waiting:
                batch, self._waiting = self._waiting, []
                self._n_waiting_keys -= sum(len(each.arrival.keys) for each in batch)
                await asyncio.to_thread(self._write, batch)

    def _write(self, batch: list[_Ended]) -> None:
        for number, each in enumerate(batch):
            try:
                is_written = self.files.write(self._line(each))
            except OSError as error:
                self.fates[Fate.NOT_WRITTEN] += len(batch) - number
                self._log_failure(error)
                return
            self.fates[Fate.RECORDED if is_written else Fate.TOO_LONG] += 1
            self.n_without_output += is_written and each.n_output is None
        self.failure = ""

    def _line(self, ended: _Ended) -> MooncakeLine:
        arrival = ended.arrival
        return MooncakeLine(
            timestamp=round((arrival.at - self.began_at) * 1000, 3),
            input_length=arrival.n_tokens,
            output_length=ended.n_output,
            hash_ids=self._aliases.of(array("Q", arrival.keys)),
        )

    def _log_failure(self, error: OSError) -> None:
        if str(error) != self.failure:
            self.failure = str(error)
            log.warning(
                "the trace in %s cannot be written: %s; set recorder.folder to a folder that kvatlas may write to, "
                "with space for recorder.maxMebibytes", self.files.folder, error,
            )  # fmt: skip
