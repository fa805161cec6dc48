"""The workers of one kvatlas, as one of them sees them: one configuration for all.

Worker 0 leads: it follows the files, takes changes over REST and numbers the configurations. The others copy its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from ...api.rest.answers import Answers, OwnAnswers
from ...configs.file_watch import FileState
from ...configs.schema import KVAtlasConfig
from ...routing.plan.live import ConfigState, LiveConfig
from .answers import WorkersAnswers
from .config_state import decoded_state, encoded_state
from .link import WorkerLink

LEADER = 0

AGREE_S = 1.0
"""Interval in which the leader compares the others' configuration with its own, to repair lost messages."""


class _Version(msgspec.Struct, array_like=True):
    """Identity of a configuration's state."""

    generation: int
    refusals: Mapping[str, str]
    seen: Mapping[str, FileState]


class Workers:
    """One worker among the others.

    Args:
        link: to the others.
        config: of this worker at its start.
        on_beat: called while this worker's event loop runs.
    """

    def __init__(self, link: WorkerLink, config: KVAtlasConfig, *, on_beat: Callable[[], None]) -> None:
        self.on_beat = on_beat
        self._link, self._requests, self._config = link, link.requests, config
        self._live: LiveConfig | None = None
        self.present: ConfigState | None = None
        """State of the others; None if `meet` found no worker that has one."""
        self._requests.handle("state", self._reply_state)

    @property
    def worker(self) -> int:
        """Number of this worker."""
        return self._link.worker

    @property
    def leads(self) -> bool:
        """Whether the others follow this worker."""
        return self.worker == LEADER

    @property
    def loads(self) -> WorkerLink:
        """Requests in flight of the others."""
        return self._link

    async def meet(self) -> None:
        """Ask the others for their state. To be called before this worker has a state of its own."""
        replies = (await self._requests.request("state")).values()
        states = [decoded_state(each, like=self._config) for each in replies if each]
        self.present = max(states, key=lambda state: state.generation, default=None)

    def join(self, own: OwnAnswers, live: LiveConfig) -> Answers:
        """Take part from now on, and return the REST answers of all workers.

        Args:
            own: answers of this worker alone.
            live: its configuration.
        """
        self._live = live

        async def version(_: bytes) -> bytes:
            return msgspec.msgpack.encode(_version(live))

        async def follow(state: bytes) -> bytes:
            await live.follow(decoded_state(state, like=self._config))
            return await version(b"")

        async def agreed() -> None:
            await self._agree(live)

        self._requests.handle("version", version)
        if self.leads:
            live.on_change = agreed
        else:
            self._requests.handle("follow", follow)
        return WorkersAnswers(self._requests, own, leader=LEADER)

    async def lead(self) -> None:
        """Keep the others in the leader's state, for ever. To be called on the leader, after `join`."""
        while self._live is not None:
            await self._agree(self._live)
            await asyncio.sleep(AGREE_S)

    async def _reply_state(self, _: bytes) -> bytes:
        return encoded_state(self._live.state) if self._live is not None else b""

    async def _agree(self, live: LiveConfig) -> None:
        """Bring every other worker to the leader's state."""
        replies = await self._requests.request("version")
        versions = {worker: msgspec.msgpack.decode(each, type=_Version) for worker, each in replies.items()}
        latest = max((each.generation for each in versions.values()), default=0)
        if latest > live.generation:  # the leader started while no other worker replied
            await live.number_from(latest + 1)
        behind = [worker for worker, each in versions.items() if each != _version(live)]
        if behind:
            await self._requests.request("follow", encoded_state(live.state), to=behind)


def _version(live: LiveConfig) -> _Version:
    state = live.state
    return _Version(state.generation, state.refusals, state.seen)
