"""Workers of one kvatlas: one configuration for all, whichever changes it, dies or restarts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kvatlas.api.rest.answers import Answers, OwnAnswers, PageQuery
from kvatlas.api.rest.errors import UnavailableError
from kvatlas.app.workers.config_state import decoded_state, encoded_state
from kvatlas.app.workers.link import WorkerSockets
from kvatlas.app.workers.workers import Workers
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.schema import KVAtlasConfig, SnapshotConfig, WeightsConfig
from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.fleet.errors import ConfigRefusedError
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.roster import wanted_endpoints
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.routing.plan.config_files import ConfigFiles, ConfigFollower
from kvatlas.routing.plan.live import ConfigState, LiveConfig
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.metrics import ConfigMetrics
from kvatlas.routing.plan.plan import Plan
from support.decisions import decided
from support.fleets import make_endpoint, make_fleet, with_endpoints
from support.tree import ROOT

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
SHIPPED = sorted((ROOT / "configs").glob("*.yaml"))
N_WORKERS = 3
ENDPOINTS = with_endpoints(make_endpoint("a", 1, events=""), make_endpoint("b", 2, events=""))


@dataclass
class Worker:
    """One worker, with the parts of a process that it needs."""

    stack: AsyncExitStack
    live: LiveConfig
    follower: ConfigFollower
    answers: Answers
    log: DecisionLog
    fleet: Fleet


@dataclass
class Kvatlas:
    """All workers in one process, over real sockets, and every configuration that was in force in any of them."""

    path: Path
    sockets: WorkerSockets = field(default_factory=lambda: WorkerSockets(N_WORKERS))
    workers: dict[int, Worker] = field(default_factory=dict[int, Worker])
    in_force: dict[int, set[WeightsConfig]] = field(default_factory=dict[int, set[WeightsConfig]])
    refusal: str | None = None

    async def begin(self, worker: int) -> Worker:
        stack = AsyncExitStack()
        link = await stack.enter_async_context(self.sockets.link(worker))
        config = load_scheduled(self.path, None).config
        workers = Workers(link, config, on_beat=lambda: None)
        await workers.meet()
        live = LiveConfig(
            config,
            paths=(self.path,),
            switch=self.switch,
            settle=nothing,
            metrics=ConfigMetrics(CollectorRegistry()),
            present=workers.present,
        )
        self.note(live.generation, live.in_force)
        fleet = await stack.enter_async_context(make_fleet())
        for name, wanted in wanted_endpoints(ENDPOINTS).items():
            fleet.add(name, wanted.addresses, wanted.labels)
        log = DecisionLog(max_count=10, max_bytes=2**20, worker=worker)
        own = OwnAnswers(log, fleet, live)
        made = self.workers[worker] = Worker(
            stack, live, ConfigFollower(ConfigFiles(self.path), live), workers.join(own, live), log, fleet
        )
        return made

    async def end(self, worker: int) -> None:
        await self.workers.pop(worker).stack.aclose()

    def switch(self, plan: Plan, generation: int) -> None:
        if self.refusal is not None:
            raise ConfigRefusedError(self.refusal)
        self.note(generation, plan.config)

    def note(self, generation: int, config: KVAtlasConfig) -> None:
        self.in_force.setdefault(generation, set()).add(config.weights)

    async def look(self) -> None:
        """Do the leader's periodic work, if there is a leader."""
        if (leader := self.workers.get(0)) is not None:
            await leader.follower.look()
            await leader.follower.look()
            await leader.live.on_change()

    def write(self, queue: int) -> None:
        """Write the file with a new time stamp, independent of the file system's resolution."""
        stamp = self.path.stat().st_mtime_ns if self.path.exists() else 0
        self.path.write_text(f"{HEAD}weights: {{queue: {queue}}}\n")
        os.utime(self.path, ns=(stamp + 10**9, stamp + 10**9))


async def nothing() -> None:
    pass


def together(path: Path, play: Callable[[Kvatlas], Awaitable[None]]) -> None:
    async def run() -> None:
        all_of_it = Kvatlas(path)
        all_of_it.write(2)
        try:
            await asyncio.gather(*map(all_of_it.begin, range(N_WORKERS)))
            await all_of_it.look()
            await play(all_of_it)
        finally:
            for worker in list(all_of_it.workers):
                await all_of_it.end(worker)
            all_of_it.sockets.close()

    asyncio.run(run())


STEPS = st.one_of(
    st.tuples(st.just("weights"), st.integers(0, N_WORKERS - 1), st.integers(1, 3)),
    st.tuples(st.just("file"), st.just(0), st.integers(1, 3)),
    st.tuples(st.just("again"), st.integers(0, N_WORKERS - 1), st.just(0)),
)


@given(steps=st.lists(STEPS, max_size=6))
@settings(max_examples=25, deadline=None)
def test_all_workers_have_one_configuration_by_generation_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    async def play(all_of_it: Kvatlas) -> None:
        queue = 2
        for what, worker, value in steps:
            if what == "weights":
                queue = value
                out = await all_of_it.workers[worker].answers.set_weights({"queue": value})
                assert (out.weights["queue"], out.missing_workers) == (value, [])
            elif what == "file":
                queue = value
                all_of_it.write(value)
                await all_of_it.look()
            else:
                await all_of_it.end(worker)
                await all_of_it.begin(worker)
                await all_of_it.look()
            found = {each.live.in_force.weights.queue for each in all_of_it.workers.values()}
            assert found == {float(queue)}
            assert len({each.live.generation for each in all_of_it.workers.values()}) == 1
        assert {generation: len(found) for generation, found in all_of_it.in_force.items()} == dict.fromkeys(
            all_of_it.in_force, 1
        )

    together(tmp_path_factory.mktemp("workers") / "kvatlas.yaml", play)


def test_weights_outlive_the_leader_until_the_file_changes(tmp_path: Path) -> None:
    async def play(all_of_it: Kvatlas) -> None:
        await all_of_it.workers[1].answers.set_weights({"queue": 9})
        await all_of_it.end(0)
        with pytest.raises(
            UnavailableError, match="worker 0, which changes weights for all, does not answer"
        ):
            await all_of_it.workers[1].answers.set_weights({"queue": 5})
        leader = await all_of_it.begin(0)
        await all_of_it.look()
        assert [each.live.in_force.weights.queue for each in all_of_it.workers.values()] == [9, 9, 9]
        assert leader.live.generation == 2
        all_of_it.write(4)
        await all_of_it.look()
        assert [each.live.in_force.weights.queue for each in all_of_it.workers.values()] == [4, 4, 4]

    together(tmp_path / "kvatlas.yaml", play)


def test_policy_and_shadow_reach_all_workers(tmp_path: Path) -> None:
    async def play(all_of_it: Kvatlas) -> None:
        changed = await all_of_it.workers[1].answers.set_policy("latency")
        shadowed = await all_of_it.workers[2].answers.set_shadow("weights")
        assert (changed.missing_workers, shadowed.missing_workers) == ([], [])
        configs = [each.live.in_force for each in all_of_it.workers.values()]
        assert {(each.policy, each.shadow.policy) for each in configs} == {("latency", "weights")}
        await all_of_it.workers[2].answers.set_shadow(None)
        assert {each.live.in_force.shadow.policy for each in all_of_it.workers.values()} == {None}

    together(tmp_path / "kvatlas.yaml", play)


def test_leader_continues_after_the_generations_of_others_when_it_began_alone(tmp_path: Path) -> None:
    async def play(all_of_it: Kvatlas) -> None:
        for queue in (5, 6, 7):
            await all_of_it.workers[1].answers.set_weights({"queue": queue})
        state = all_of_it.workers[0].live.state
        alone = ConfigState(1, state.config)
        all_of_it.workers[0].live.generation = alone.generation
        await all_of_it.look()
        assert {each.live.generation for each in all_of_it.workers.values()} == {5}

    together(tmp_path / "kvatlas.yaml", play)


def test_refusals_reach_all_workers(tmp_path: Path) -> None:
    async def play(all_of_it: Kvatlas) -> None:
        all_of_it.write(-1)
        await all_of_it.look()
        refusals = [each.live.refusals for each in all_of_it.workers.values()]
        assert [list(each) for each in refusals] == [[str(all_of_it.path)]] * N_WORKERS
        asker = all_of_it.workers[2].answers
        for impossible in ({"queue": float("inf")}, {"queue": 1, "nothing": 10**30}):
            with pytest.raises(ConfigError, match=r"weights: (queue: found infinity|nothing: unknown key)"):
                await asker.set_weights(impossible)
        all_of_it.refusal = "something is in the way"
        with pytest.raises(ConfigRefusedError, match="PUT /v1/weights: something is in the way"):
            await asker.set_weights({"queue": 3})

    together(tmp_path / "kvatlas.yaml", play)


def test_audit_is_the_sum_over_all(tmp_path: Path) -> None:
    async def play(all_of_it: Kvatlas) -> None:
        for worker, reused in ((0, 100), (2, 30)):
            judged = Audited(
                "a", Verdict.EVICTED if reused < 100 else Verdict.GOOD, None, {"gpu": 100}, {"gpu": reused}
            )
            all_of_it.workers[worker].fleet.audit.add(judged, now=0.0)
        (row,) = (await all_of_it.workers[1].answers.audit()).endpoints
        assert (row.name, row.requests, row.verdicts["good"], row.verdicts["evicted"]) == ("a", 2, 1, 1)
        assert (row.expected_tokens, row.reused_tokens, row.over_tokens) == ({"gpu": 200}, {"gpu": 130}, 70)
        await all_of_it.end(2)
        audit = await all_of_it.workers[1].answers.audit()
        assert ([each.requests for each in audit.endpoints], audit.missing_workers) == ([1], [2])

    together(tmp_path / "kvatlas.yaml", play)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_state_is_unchanged_by_encoding(file: Path) -> None:
    config = load_scheduled(file, None).config
    state = ConfigState(7, config, {"a.yaml": "line 3"}, {"a.yaml": (("a.yaml", 1, 2, 3, 4),)})
    elsewhere = msgspec.structs.replace(config, snapshot=SnapshotConfig(file="s.1"))

    assert decoded_state(encoded_state(state), like=config) == state
    assert decoded_state(encoded_state(state), like=elsewhere).config == elsewhere


def test_decisions_are_those_of_all(tmp_path: Path) -> None:
    decision = decided([[1.0], [0.5]], [1])

    async def play(all_of_it: Kvatlas) -> None:
        for number in range(7):
            log = all_of_it.workers[number % N_WORKERS].log
            log.add(decision, request_id=f"r{number}", at=1000.0 + number)
        all_of_it.workers[0].log.add(decision, request_id="r1", at=2000.0)
        asker = all_of_it.workers[1].answers

        listed: list[str] = []
        cursor: int | None = None
        while True:
            page = await asker.decisions(PageQuery(3, None, cursor))
            listed += [each.request_id for each in page.decisions]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert listed == ["r1", "r6", "r5", "r4", "r3", "r2", "r1", "r0"]
        assert (await asker.decisions(PageQuery(3, "e1"))).decisions == []
        newest = await asker.decision("r1")
        assert newest is not None
        assert newest.at == 2000.0
        assert await asker.decision("r9") is None
        await all_of_it.end(0)
        page = await asker.decisions(PageQuery(3))
        assert ([each.request_id for each in page.decisions], page.missing_workers) == (
            ["r5", "r4", "r2"],
            [0],
        )
        with pytest.raises(UnavailableError, match=r"workers \[0\] do not answer"):
            await asker.decision("r9")

    together(tmp_path / "kvatlas.yaml", play)
