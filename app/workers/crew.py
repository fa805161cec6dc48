"""All workers of one kvatlas, as one of them sees them: one configuration for all.

Worker 0 leads: it follows the files, takes changes over REST and numbers the configurations. The others have what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from ...api.rest.answers import Answers, OwnAnswers
from ...configs.file_watch import FileState
from ...configs.schema import KVAtlasConfig
from ...routing.plan.live import ConfigState, LiveConfig
from .answers import CrewAnswers
from .config_state import decoded_state, encoded_state
from .link import SiblingLink

LEADER = 0

AGREE_S = 1.0
"""How often the leader looks whether the others have what it has, to make good what was lost."""


class _Version(msgspec.Struct, array_like=True):
    """What a configuration's state is known by."""

    generation: int
    refusals: Mapping[str, str]
    seen: Mapping[str, FileState]


class Crew:
    """One worker among the others.

    Args:
        link: to the others.
        config: of this worker at its start.
    """

    def __init__(self, link: SiblingLink, config: KVAtlasConfig) -> None:
        self._link, self._talk, self._config = link, link.talk, config
        self._live: LiveConfig | None = None
        self.present: ConfigState | None = None
        """Where the others are; None where `meet` found nobody who is anywhere."""
        self._talk.on("state", self._tell_state)

    @property
    def worker(self) -> int:
        """The number of this one."""
        return self._link.worker

    @property
    def leads(self) -> bool:
        """Whether the others follow this one."""
        return self.worker == LEADER

    @property
    def loads(self) -> SiblingLink:
        """What the others have sent to endpoints."""
        return self._link

    async def meet(self) -> None:
        """Learn where the others are. To be called before this one has anything to tell."""
        told = (await self._talk.ask("state")).values()
        states = [decoded_state(each, like=self._config) for each in told if each]
        self.present = max(states, key=lambda state: state.generation, default=None)

    def join(self, own: OwnAnswers, live: LiveConfig) -> Answers:
        """Take part from now on; the answers of all.

        Args:
            own: answers of this worker alone.
            live: its configuration.
        """
        self._live = live

        async def version(_: bytes) -> bytes:
            return msgspec.msgpack.encode(_version(live))

        async def follow(told: bytes) -> bytes:
            await live.follow(decoded_state(told, like=self._config))
            return await version(b"")

        async def agreed() -> None:
            await self._agree(live)

        self._talk.on("version", version)
        if self.leads:
            live.tell = agreed
        else:
            self._talk.on("follow", follow)
        return CrewAnswers(self._talk, own, leader=LEADER)

    async def lead(self) -> None:
        """Keep the others where this one is, for ever. To be called of the leader, after `join`."""
        while self._live is not None:
            await self._agree(self._live)
            await asyncio.sleep(AGREE_S)

    async def _tell_state(self, _: bytes) -> bytes:
        return encoded_state(self._live.state) if self._live is not None else b""

    async def _agree(self, live: LiveConfig) -> None:
        """Bring every other worker to where the leader is."""
        answers = await self._talk.ask("version")
        versions = {worker: msgspec.msgpack.decode(each, type=_Version) for worker, each in answers.items()}
        latest = max((each.generation for each in versions.values()), default=0)
        if latest > live.generation:  # nobody could say so when the leader started
            await live.number_from(latest + 1)
        behind = [worker for worker, each in versions.items() if each != _version(live)]
        if behind:
            await self._talk.ask("follow", encoded_state(live.state), of=behind)


def _version(live: LiveConfig) -> _Version:
    state = live.state
    return _Version(state.generation, state.refusals, state.seen)
