"""What REST changes on one replica holds on all, or on none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvatlas.app.replicas.answers import ReplicaAnswers
from kvatlas.app.replicas.configuration import CHANNEL, SharedConfiguration
from kvatlas.app.replicas.registrations import SharedRegistrations
from kvatlas.configs.endpoints import RankAddresses
from kvatlas.configs.errors import ConfigError
from kvatlas.fleet.errors import AlreadyRegisteredError, ConfigRefusedError, NotRegisteredError
from kvatlas.fleet.instance import Instance
from kvatlas.fleet.registered import Registration, Registry
from kvatlas.fleet.replicas.word import Changes, Stamp, Word, encoded
from kvatlas.routing.plan.capacities import capacities_of
from kvatlas.routing.plan.live import LiveConfig
from kvatlas.routing.plan.weights import weights_of
from support.fleets import make_fleet
from support.linked_replicas import LinkedReplicas
from support.live_configs import HEAD, Process, live_config, look, write
from support.waiting import until


@dataclass
class Node:
    process: Process
    live: LiveConfig
    shared: SharedConfiguration
    answers: ReplicaAnswers
    path: Path
    task: asyncio.Task[None]


class Nodes:
    """Replicas `a`, `b`, ... with a file each."""

    def __init__(self, network: LinkedReplicas, folder: Path) -> None:
        self.network, self._folder = network, folder
        self.nodes: dict[str, Node] = {}

    def add(self, name: str, text: str = "", *, boot: int = 0, runs: bool = True) -> Node:
        process, path = Process(), self._folder / f"{name}.{boot}.yaml"
        live = live_config(path, text, process)
        linked = self.network.add(name, boot=boot)
        shared = SharedConfiguration(
            linked.id, name, live, living=linked.living, silent_s=self.network.silent_ms / 1e3
        )
        linked.channels[CHANNEL] = shared.words
        linked.start()
        # decisions and audit are not asked for
        answers = ReplicaAnswers(None, live, shared)  # type: ignore[arg-type]
        node = Node(
            process,
            live,
            shared,
            answers,
            path,
            asyncio.create_task(shared.run() if runs else asyncio.sleep(0)),
        )
        self.nodes[name] = node
        return node

    async def meet(self) -> None:
        def knows_all() -> bool:
            return all(
                len(each.shared.agreement.words) == len(self.nodes) - 1 for each in self.nodes.values()
            )

        await until(knows_all, what="all to know each other")

    def queues(self) -> list[float]:
        return [weights_of(node.live.plan)["queue"] for node in self.nodes.values()]

    def generations(self) -> set[int]:
        return {node.live.generation for node in self.nodes.values()}

    async def stop(self) -> None:
        tasks = [node.task for node in self.nodes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def nodes(folder: Path, names: str = "abc", *, silent_ms: int = 5000) -> AsyncGenerator[Nodes]:
    """Run replicas that know each other; a loaded machine takes a while to answer, so that few are silent soon."""
    async with LinkedReplicas(silent_ms=silent_ms) as network:
        found = Nodes(network, folder)
        try:
            for name in names:
                found.add(name)
            await found.meet()
            yield found
        finally:
            await found.stop()


@pytest.mark.parametrize("when", ["faults", "prepare_faults"])
async def test_later_changes_are_made_after_one_that_failed_midway(tmp_path: Path, when: str) -> None:
    async with nodes(tmp_path) as all_:
        before = all_.queues()
        setattr(all_.nodes["b"].process, when, [RuntimeError("no such row")])

        with pytest.raises(
            ConfigRefusedError, match=r"in force on no replica: b: .*RuntimeError: no such row"
        ):
            await all_.nodes["b"].answers.set_weights({"queue": 5})
        assert all_.queues() == before

        await all_.nodes["b"].answers.set_weights({"queue": 6})
        assert all_.queues() == [6, 6, 6]


async def test_change_is_in_force_on_all_when_its_caller_has_the_answer(tmp_path: Path) -> None:
    async with nodes(tmp_path) as all_:
        answer = await all_.nodes["b"].answers.set_weights({"queue": 5})
        assert all_.queues() == [5, 5, 5]
        assert [(each.name, each.problem) for each in answer.replicas] == [
            ("b", None),
            ("a", None),
            ("c", None),
        ]
        assert {each.generation for each in answer.replicas} == all_.generations() == {answer.generation}
        assert answer.changes == ["weights.queue: 2 -> 5"]
        again = await all_.nodes["c"].answers.set_weights({"kvCacheUtilization": 1})
        assert again.weights["queue"] == 5
        digests = {node.shared.agreement.word.digest for node in all_.nodes.values()}
        assert len(digests) == 1


async def test_capacities_that_are_changed_hold_on_all_until_a_file_is_loaded(tmp_path: Path) -> None:
    def capacities() -> list[object]:
        return [capacities_of(node.live.in_force)["cpu"] for node in all_.nodes.values()]

    async with nodes(tmp_path) as all_:
        answer = await all_.nodes["b"].answers.set_capacities({"cpu": 41000})
        assert answer.changes == ["tiers[cpu].lruCapacityPerServer: 'auto' -> 41000"]
        assert [each.generation for each in answer.replicas] == [2, 2, 2]
        assert capacities() == [41000] * 3
        await all_.nodes["c"].answers.set_weights({"queue": 5})
        assert (capacities(), all_.queues()) == ([41000] * 3, [5, 5, 5])
        for impossible in ({"cpu": -1}, {"cpu": "some"}, {"tape": 7}, {"": 7}):
            with pytest.raises(ConfigError, match="capacities"):
                await all_.nodes["a"].answers.set_capacities(impossible)

        a = all_.nodes["a"]
        write(a.path, HEAD + "weights: {queue: 9}\n")
        await look(a.process)
        await until(lambda: capacities() == ["auto"] * 3, what="the end of what REST changed")


async def test_change_is_in_force_on_one_that_starts_before_it_decides(tmp_path: Path) -> None:
    async with nodes(tmp_path, "ab") as all_:
        await all_.nodes["a"].answers.set_weights({"queue": 5})
        late = all_.add("c", runs=False)
        await until(lambda: len(all_.network.replicas["c"].living()) == 2, what="the others")
        await late.shared.catch_up()
        assert all_.queues() == [5, 5, 5]
        assert len(all_.generations()) == 1


async def test_change_is_in_force_on_none_when_one_refuses_it(tmp_path: Path) -> None:
    async with nodes(tmp_path) as all_:
        write(all_.nodes["c"].path, f"{HEAD}plugins: [{{type: queue-scorer}}]")
        await look(all_.nodes["c"].process)
        with pytest.raises(ConfigRefusedError, match=r"in force on no replica: c: .*queue"):
            await all_.nodes["a"].answers.set_weights({"queue": 5})
        assert (
            weights_of(all_.nodes["a"].live.plan)["queue"]
            == weights_of(all_.nodes["b"].live.plan)["queue"]
            == 2
        )


async def test_change_is_in_force_on_none_when_one_is_silent_and_with_force_on_the_others(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, silent_ms=1000) as all_:
        all_.nodes["c"].task.cancel()  # it lives, and does nothing for its configuration
        with pytest.raises(ConfigRefusedError, match="c: silent"):
            await all_.nodes["a"].answers.set_weights({"queue": 5})
        assert all_.queues() == [2, 2, 2]
        answer = await all_.nodes["a"].answers.set_weights({"queue": 6}, force=True)
        assert all_.queues() == [6, 6, 2]
        assert {each.name: each.problem is None for each in answer.replicas} == {
            "a": True,
            "b": True,
            "c": False,
        }
        all_.nodes["c"].task = asyncio.create_task(all_.nodes["c"].shared.run())
        await until(lambda: all_.queues() == [6, 6, 6], what="c to follow")


async def test_answer_has_its_own_changes_when_another_replica_makes_one_meanwhile(tmp_path: Path) -> None:
    async with nodes(tmp_path, silent_ms=1000) as all_:
        all_.nodes["c"].task.cancel()  # both callers wait for it
        a, b = all_.nodes["a"], all_.nodes["b"]
        one = asyncio.create_task(a.answers.set_weights({"queue": 5}, force=True))
        await until(lambda: all_.queues()[:2] == [5, 5], what="the first change")
        two = asyncio.create_task(b.answers.set_weights({"kvCacheUtilization": 1}, force=True))
        await until(lambda: weights_of(a.live.plan)["kvCacheUtilization"] == 1, what="the second change")

        assert (await one).changes == ["weights.queue: 2 -> 5"]
        assert (await two).changes == ["weights.kvCacheUtilization: 2 -> 1"]


async def test_change_does_not_wait_for_a_replica_that_starts_and_holds_there_too(tmp_path: Path) -> None:
    async with nodes(tmp_path, "ab") as all_:
        late = all_.add("c", runs=False)
        await all_.meet()
        await all_.nodes["a"].answers.set_weights({"queue": 5})
        answer = await all_.nodes["b"].answers.set_weights({"queue": 6})
        assert all_.queues() == [6, 6, 2]
        problems = {each.name: each.problem for each in answer.replicas}
        assert (problems["a"], problems["b"]) == (None, None)
        assert (problems["c"] or "").startswith("starting")
        await late.shared.catch_up()
        late.task = asyncio.create_task(late.shared.run())
        await all_.nodes["a"].answers.set_weights({"queue": 7})
        assert all_.queues() == [7, 7, 7]


async def test_impossible_change_is_refused_before_others_hear_of_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, "ab") as all_:
        with pytest.raises(ConfigError, match="queu"):
            await all_.nodes["a"].answers.set_weights({"queu": 5})
        with pytest.raises(ConfigError, match="queue"):
            await all_.nodes["a"].answers.set_weights({"queue": -5})
        assert all_.generations() == {1}


async def test_changes_made_at_once_take_effect_one_after_the_other(tmp_path: Path) -> None:
    async with nodes(tmp_path) as all_:
        made = [(name, value) for value, name in enumerate("abcabcabc", start=3)]
        answers = await asyncio.gather(
            *(all_.nodes[name].answers.set_weights({"queue": value}) for name, value in made)
        )
        assert len({answer.generation for answer in answers}) == len(made)
        last = max(zip(answers, made, strict=True), key=lambda each: each[0].generation)[1]
        await until(lambda: all_.queues() == [last[1]] * 3, what="the last change everywhere")


async def test_replica_that_joins_takes_the_newest_changes(tmp_path: Path) -> None:
    async with nodes(tmp_path, "ab") as all_:
        await all_.nodes["a"].answers.set_weights({"queue": 5})
        await all_.nodes["b"].answers.set_policy("latency")
        await all_.nodes["b"].answers.set_policy("weights")
        all_.add("c")
        await until(lambda: all_.queues() == [5, 5, 5], what="the one that joined")
        await all_.meet()
        assert len(all_.generations()) == 1


async def test_replica_beyond_a_cut_follows_when_it_is_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, silent_ms=1000) as all_:
        all_.network.cut.add("c")
        await until(lambda: len(all_.nodes["a"].shared.agreement.words) == 1, what="c to be dropped")
        await all_.nodes["a"].answers.set_weights({"queue": 5})
        assert all_.queues() == [5, 5, 2]
        all_.network.cut.clear()
        await until(lambda: all_.queues() == [5, 5, 5], what="c to follow")


def registration(name: str, rank: int = 0, port: int = 1) -> Registration:
    addresses = RankAddresses(rank, f"tcp://127.0.0.1:{port}", None)
    return Registration(
        instance=Instance(name, "acme", model="m"), given_id=name, addresses=addresses, block_size=16
    )


async def test_changes_that_nest_too_deeply_are_refused_and_later_ones_hold(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a") as all_:
        shared = all_.nodes["a"].shared
        changes = Changes(Stamp(5, "x/0"), {"weight/queue": b"[" * 100_000})
        shared.words.apply("x/0", encoded(Word("x", 5, changes=changes)))
        await until(lambda: shared.agreement.word.refused is not None, what="the refusal")
        shared.words.drop("x/0")

        await all_.nodes["a"].answers.set_weights({"queue": 5})

        assert all_.queues() == [5]


async def test_instance_is_registered_on_all_and_with_one_that_joins(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        all_ = await stack.enter_async_context(nodes(tmp_path, "ab"))
        registries: dict[str, Registry] = {}
        shared: dict[str, SharedRegistrations] = {}

        async def add(name: str, *, max_ranks: int = 3) -> None:
            fleet = await stack.enter_async_context(make_fleet())
            registries[name] = Registry(fleet, max_ranks=max_ranks)
            shared[name] = SharedRegistrations(registries[name], all_.nodes[name].shared)

        def known() -> list[set[str]]:
            return [
                {each.instance.name for each in registry.registrations()} for registry in registries.values()
            ]

        for name in "ab":
            await add(name)
        assert await shared["a"].register(registration("x"))
        assert await shared["b"].register(registration("y"))
        assert not await shared["b"].register(registration("x"))
        assert known() == [{"x", "y"}, {"x", "y"}]
        await all_.nodes["a"].answers.set_weights({"queue": 5})
        assert known() == [{"x", "y"}, {"x", "y"}]
        with pytest.raises(AlreadyRegisteredError):
            await shared["b"].register(registration("x", port=2))
        (gone,) = await shared["b"].unregister("acme", "x", None)
        assert (gone.instance.name, known()) == ("x", [{"y"}, {"y"}])
        with pytest.raises(NotRegisteredError):
            await shared["a"].unregister("acme", "x", None)

        all_.add("c")
        await add("c", max_ranks=1)  # it has no room for more
        await until(lambda: known() == [{"y"}] * 3, what="the one that joined")
        await all_.meet()
        with pytest.raises(ConfigRefusedError, match="c: 1 ranks are registered"):
            await shared["a"].register(registration("z"))
        assert known() == [{"y"}] * 3


async def test_instance_of_a_change_that_failed_midway_is_not_registered(tmp_path: Path) -> None:
    async with nodes(tmp_path, "a") as all_, make_fleet() as fleet:
        node, registry = all_.nodes["a"], Registry(fleet, max_ranks=3)
        shared = SharedRegistrations(registry, node.shared)
        await shared.register(registration("x"))
        for faults in (node.process.faults, node.process.prepare_faults):
            faults.append(RuntimeError("no such row"))

            with pytest.raises(ConfigRefusedError, match=r"a: .*RuntimeError: no such row"):
                await shared.register(registration("y"))
            faults.append(RuntimeError("no such row"))
            with pytest.raises(ConfigRefusedError, match=r"a: .*RuntimeError: no such row"):
                await shared.unregister("acme", "x", None)

            assert [each.instance.name for each in registry.registrations()] == ["x"]


async def test_file_that_is_loaded_again_ends_what_rest_changed_everywhere(tmp_path: Path) -> None:
    async with nodes(tmp_path, "ab") as all_:
        await look(all_.nodes["a"].process)
        await all_.nodes["b"].answers.set_weights({"queue": 5})
        write(all_.nodes["a"].path, f"{HEAD}weights: {{queue: 7}}")
        await look(all_.nodes["a"].process)
        await until(lambda: all_.queues() == [7, 2], what="the end of what REST changed")
        await until(
            lambda: not all_.nodes["b"].shared.agreement.word.changes.values, what="no changes of REST"
        )
