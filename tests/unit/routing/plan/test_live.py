"""How a configuration changes: whole or not at all, one after the other, with a word about each."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kvatlas.configs.errors import ConfigError
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.fleet.errors import ConfigRefusedError
from kvatlas.routing.plan.config_files import ConfigFollower
from kvatlas.routing.plan.live import MAX_LOGGED_CHANGES, LiveConfig
from kvatlas.routing.plan.metrics import ConfigMetrics
from support.live_configs import HEAD, Process, live_config, look, queues, write


@pytest.fixture
def process() -> Process:
    return Process()


async def test_changed_file_is_put_in_force_with_the_next_generation(
    tmp_path: Path, process: Process
) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "weights: {queue: 2}", process)
    await look(process)
    assert (live.generation, process.switched) == (1, [])

    write(path, f"{HEAD}weights: {{queue: 3}}")
    await look(process)
    write(path, f"{HEAD}weights: {{queue: 4}}")
    await look(process)
    await look(process)

    assert queues(process) == [(2, 3.0), (3, 4.0)]
    assert (live.generation, live.in_force, process.settled) == (3, process.switched[-1][1], 2)
    assert process.value("generation") == 3
    assert process.value("loads_total", source="file", outcome="applied") == 2
    assert process.value("loads_total", source="file", outcome="unchanged") == 1


async def test_change_is_logged_key_by_key(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kvatlas.routing.plan.live")
    path = tmp_path / "kvatlas.yaml"
    live_config(path, "", process)
    write(path, f"{HEAD}weights: {{queue: 3}}\nmetricsScrape: {{interval: 1s}}")

    await look(process)

    assert [record.getMessage() for record in caplog.records] == [
        f"configuration generation 2 is in force ({path}):",
        "  weights.queue: 2 -> 3",
        "  metricsScrape.interval: '50ms' -> '1s'",
    ]


async def test_endless_changes_are_not_all_logged(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kvatlas.routing.plan.live")
    path = tmp_path / "kvatlas.yaml"
    live_config(path, "", process)
    servers = ", ".join(
        f"{{name: e{number}, address: 'h:{number}'}}" for number in range(1, MAX_LOGGED_CHANGES + 4)
    )
    write(path, f"{HEAD}endpoints: {{static: [{servers}]}}")

    await look(process)

    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == MAX_LOGGED_CHANGES + 2
    assert messages[-1] == "  and 3 more"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("weights: {queu: 3}", "line 3, weights.queu: unknown key; did you mean 'queue'?", id="unknown_key"),
        pytest.param("weights: {queue: -3}", "line 3, weights.queue: found -3, expected", id="impossible_value"),
        pytest.param("weights: [", "line 4: not valid YAML", id="no_yaml"),
        pytest.param("metricsScrape: {staleAfter: 1ms}", "line 3, metricsScrape.staleAfter: found", id="contradiction"),
        pytest.param("endpoints: {file: none.yaml}", "none.yaml: no such file", id="missing_list"),
        pytest.param(
            "index: {hashSeed: 7}\nserver: {rest: 'h:1'}\nweights: {queue: 3}",
            "needs a restart: server.rest: '0.0.0.0:8080' -> 'h:1'; index.hashSeed: 0 -> 7",
            id="needs_a_restart",
        ),
    ],
)  # fmt: skip
async def test_bad_file_is_refused_whole_and_the_next_good_one_taken(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "", process)
    await look(process)

    write(path, f"{HEAD}{text}\n")
    await look(process)
    await look(process)

    assert (live.generation, process.switched) == (1, [])
    assert reason in live.refusals[str(path)]
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == f"configuration generation 1 stays in force: {live.refusals[str(path)]}"
    assert process.value("loads_total", source="file", outcome="refused") == 1
    assert process.value("refused") == 1

    write(path, f"{HEAD}weights: {{queue: 5}}")
    await look(process)
    assert queues(process) == [(2, 5.0)]
    assert (live.refusals, process.value("refused")) == ({}, 0)


async def test_file_that_goes_away_leaves_the_configuration_in_force(
    tmp_path: Path, process: Process
) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "", process)
    await look(process)
    path.unlink()
    await look(process)

    assert live.refusals == {str(path): f"{path}: no such file"}
    assert live.generation == 1


async def test_plugins_go_on_where_only_weights_change_and_notes_are_logged_again(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kvatlas.routing.plan.live")
    path = tmp_path / "kvatlas.yaml"
    plugins = (
        "plugins: [{type: no-hit-lru-scorer}, {type: openai-parser}]\n"
        "schedulingProfiles: [{plugins: [{pluginRef: no-hit-lru-scorer, weight: %s}]}]"
    )
    live = live_config(path, plugins % 1, process)
    seen = [live.plan.profile.scorers[0]]

    write(path, HEAD + plugins % 2)
    await look(process)
    seen.append(live.plan.profile.scorers[0])
    told = await live.set_weights({"no-hit-lru-scorer": 3})
    seen.append(live.plan.profile.scorers[0])

    assert [weight for _, _, weight in seen] == [1, 2, 3]
    assert len({id(scorer) for _, scorer, _ in seen}) == 1
    assert [str(change) for change in told] == [
        "schedulingProfiles[default].plugins[no-hit-lru-scorer].weight: 2 -> 3"
    ]
    assert "  plugin openai-parser has no effect: requestHandler.parsers does not name it" in [
        record.getMessage() for record in caplog.records
    ]


async def test_refusal_of_the_process_is_a_refusal_of_the_file(tmp_path: Path, process: Process) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "", process)
    process.refusal = "endpoint 'a': no more sockets"
    write(path, f"{HEAD}weights: {{queue: 3}}")
    await look(process)

    assert live.refusals == {str(path): f"{path}: endpoint 'a': no more sockets"}
    assert (live.generation, live.in_force.weights.queue, process.settled) == (1, 2.0, 0)


# -- servers in a file of their own -------------------------------------------------------------------------------------


def servers(config: KVAtlasConfig) -> list[str]:
    return [endpoint.name for endpoint in config.endpoints.static]


async def test_list_of_servers_is_followed_by_itself(tmp_path: Path, process: Process) -> None:
    path, listed = tmp_path / "kvatlas.yaml", tmp_path / "servers.yaml"
    write(listed, "[{name: a, address: 'h:1'}]")
    live = live_config(path, "endpoints: {file: servers.yaml}", process)
    await look(process)
    write(path, "broken")
    write(listed, "[{name: a, address: 'h:1'}, {name: b, address: 'h:2'}]")
    await look(process)

    assert [servers(config) for _, config in process.switched] == [["a", "b"]]
    assert live.generation == 2
    assert set(live.refusals) == {str(path)}


async def test_bad_list_of_servers_is_refused_and_the_configuration_changes_without_it(
    tmp_path: Path, process: Process
) -> None:
    path, listed = tmp_path / "kvatlas.yaml", tmp_path / "servers.yaml"
    write(listed, "[{name: a, address: 'h:1'}]")
    live = live_config(path, "endpoints: {file: servers.yaml}", process)
    await look(process)
    write(listed, "[{name: a}]")
    await look(process)
    write(path, f"{HEAD}endpoints: {{file: servers.yaml}}\nweights: {{queue: 3}}")
    await look(process)

    assert set(live.refusals) == {str(listed)}
    assert queues(process) == [(2, 3.0)]
    assert servers(live.in_force) == ["a"]


async def test_other_list_of_servers_is_read_at_once_and_followed_in_place_of_the_first(
    tmp_path: Path, process: Process
) -> None:
    path, first, second = tmp_path / "kvatlas.yaml", tmp_path / "first.yaml", tmp_path / "second.yaml"
    write(first, "[{name: a, address: 'h:1'}]")
    write(second, "[{name: b, address: 'h:1'}]")
    live = live_config(path, "endpoints: {file: first.yaml}", process)
    await look(process)
    write(first, "broken")
    await look(process)
    write(path, f"{HEAD}endpoints: {{file: second.yaml}}")
    await look(process)
    assert (servers(live.in_force), live.refusals) == (["b"], {})

    write(first, "[{name: z, address: 'h:1'}]")
    write(second, "[{name: c, address: 'h:1'}]")
    await look(process)
    assert servers(live.in_force) == ["c"]

    write(path, f"{HEAD}endpoints: {{static: [{{name: d, address: 'h:1'}}]}}")
    await look(process)
    write(second, "[{name: z, address: 'h:1'}]")
    await look(process)
    assert servers(live.in_force) == ["d"]


# -- weights -----------------------------------------------------------------------------------------------------------


async def test_weights_are_in_force_until_the_file_is_loaded_again(tmp_path: Path, process: Process) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "weights: {queue: 2}", process)
    await look(process)

    told = await live.set_weights({"queue": 7})
    await look(process)
    assert [str(change) for change in told] == ["weights.queue: 2 -> 7"]
    assert live.in_force.weights.queue == 7

    await process.follower.reload()
    assert live.in_force.weights.queue == 2
    assert queues(process) == [(2, 7.0), (3, 2.0)]
    assert process.value("loads_total", source="rest", outcome="applied") == 1
    assert process.value("loads_total", source="signal", outcome="applied") == 1


async def test_weights_as_they_are_make_no_generation(tmp_path: Path, process: Process) -> None:
    live = live_config(tmp_path / "kvatlas.yaml", "weights: {queue: 2}", process)

    assert await live.set_weights({"queue": 2}) == []
    assert await live.set_weights({}) == []
    assert (live.generation, process.switched) == (1, [])


async def test_impossible_weights_change_nothing(tmp_path: Path, process: Process) -> None:
    live = live_config(tmp_path / "kvatlas.yaml", "", process)

    with pytest.raises(ConfigError, match="queue: found -1"):
        await live.set_weights({"queue": -1, "gpuPrefixCache": 5})

    assert (live.generation, process.switched) == (1, [])
    assert process.value("loads_total", source="rest", outcome="refused") == 1


async def test_change_that_fails_midway_is_refused_and_the_one_before_is_applied_again(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    live = live_config(tmp_path / "kvatlas.yaml", "weights: {queue: 2}", process)
    before = live.in_force
    process.faults = [RuntimeError("no such row")]

    with pytest.raises(
        ConfigRefusedError, match=r"PUT /v1/weights: it failed with RuntimeError: no such row"
    ):
        await live.set_weights({"queue": 7})

    assert (live.generation, live.in_force) == (1, before)
    assert queues(process) == [(2, 7.0), (1, 2.0)]
    assert process.value("loads_total", source="rest", outcome="refused") == 1
    assert "no such row" in caplog.text
    await live.set_weights({"queue": 8})
    assert queues(process)[2:] == [(2, 8.0)]


async def test_change_is_said_to_be_in_force_although_what_it_frees_is_not_all_freed(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    live, told = live_config(tmp_path / "kvatlas.yaml", "", process), list[int]()
    process.settle_faults = [RuntimeError("no such endpoint")]

    async def on_change() -> None:
        told.append(live.generation)

    live.on_change = on_change
    changes = await live.set_weights({"queue": 7})

    assert [str(each) for each in changes] == ["weights.queue: 2 -> 7"]
    assert (live.generation, live.in_force.weights.queue, told) == (2, 7.0, [2])
    assert "generation 2 is in force, but" in caplog.text


async def test_process_without_a_file_takes_weights_and_follows_nothing(process: Process) -> None:
    config = KVAtlasConfig(api_version="kvatlas/v1")
    live = LiveConfig(
        config, switch=process.switch, settle=process.settle, metrics=ConfigMetrics(process.registry)
    )
    process.follower = ConfigFollower(None, live)

    await look(process)
    await process.follower.reload()
    await live.set_weights({"queue": 4})

    assert queues(process) == [(2, 4.0)]


async def test_signal_loads_both_files(tmp_path: Path, process: Process) -> None:
    path, listed = tmp_path / "kvatlas.yaml", tmp_path / "servers.yaml"
    write(listed, "[{name: a, address: 'h:1'}]")
    live = live_config(path, "endpoints: {file: servers.yaml}", process)
    write(listed, "[{name: b, address: 'h:1'}]")
    write(path, f"{HEAD}endpoints: {{file: servers.yaml}}\nweights: {{queue: 3}}")

    await process.follower.reload()

    assert (servers(live.in_force), live.in_force.weights.queue, live.generation) == (["b"], 3.0, 3)


async def test_changes_that_come_together_are_made_one_after_the_other(
    tmp_path: Path, process: Process
) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "", process)
    write(path, f"{HEAD}events: {{trustCredit: {{stale: 0.1}}}}")

    await asyncio.gather(
        process.follower.reload(), *(live.set_weights({"queue": number}) for number in range(10, 20))
    )

    assert [generation for generation, _ in process.switched] == list(range(2, 13))
    assert live.in_force.events.trust_credit.stale == 0.1
    assert live.in_force.weights.queue == 19


async def test_weights_set_before_the_file_was_first_looked_at_stay(tmp_path: Path, process: Process) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "weights: {queue: 2}", process)

    await live.set_weights({"queue": 7})
    await look(process)
    kept = live.in_force.weights.queue
    await process.follower.reload()

    assert (kept, live.in_force.weights.queue) == (7, 2)
    assert process.value("loads_total", source="file", outcome="unchanged") == 1


async def test_file_that_changed_before_it_was_first_looked_at_counts(
    tmp_path: Path, process: Process
) -> None:
    path = tmp_path / "kvatlas.yaml"
    live = live_config(path, "weights: {queue: 2}", process)

    await live.set_weights({"queue": 7})
    write(path, HEAD + "weights: {queue: 3}")
    await look(process)

    assert live.in_force.weights.queue == 3
