"""Files as a whole: cross checks, reading errors, the tokenizer's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.errors import ConfigError, Problem
from kvatlas.configs.loader import load_config, load_file
from kvatlas.configs.schema import KVAtlasConfig

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def message_of(file: Path) -> str:
    """The error of loading `file`, its path shortened to the name."""
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    return str(raised.value).replace(str(file), file.name)


def test_head_alone_is_the_default_configuration(config_file: Path) -> None:
    config_file.write_text(HEAD)

    assert load_config(str(config_file)) == KVAtlasConfig(api_version="kvatlas/v1")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(
            "weight: {queue: 1}", "line 3, weight: unknown key; did you mean 'weights'? allowed: ", id="key"
        ),
        pytest.param(
            "server: {rest: '8080'}", "line 3, server.rest: found '8080', expected HOST:PORT", id="listener"
        ),
        pytest.param(
            "server:\n  rest: 0.0.0.0:9002",
            "line 4, server.rest: found '0.0.0.0:9002', which is also the address at server.extProc",
            id="two_listeners_on_one_port",
        ),
        pytest.param(
            "endpoints:\n  static:\n  - {name: a, address: 'h:1'}\n  - {name: a, address: 'i:1'}",
            "line 6, endpoints.static[1].name: found 'a', which is also the name at endpoints.static[0].name",
            id="endpoint_name_twice",
        ),
        pytest.param(
            "endpoints:\n  static:\n  - {name: a, address: 'H:1'}\n  - {name: b, address: 'h:1'}",
            "line 6, endpoints.static[1].address: found 'h:1', which is also the address at endpoints.static[0].address",
            id="endpoint_address_twice",
        ),
        pytest.param(
            "endpoints:\n  static:\n  - {name: a, address: 'h:1', events: 'tcp://h:2'}\n"
            "  - {name: b, address: 'i:1', events: 'tcp://h:2'}",
            "line 6, endpoints.static[1].events: found 'tcp://h:2', which is also the events address at "
            "endpoints.static[0].events",
            id="events_address_twice",
        ),
        pytest.param(
            "endpoints:\n  static:\n  - name: a\n    address: 10.0.0.1",
            "line 6, endpoints.static[0].address: found '10.0.0.1', expected HOST:PORT",
            id="endpoint_address",
        ),
        pytest.param(
            "endpoints: {static: [{name: a, address: 'h:1', events: 'h:5557'}]}",
            "line 3, endpoints.static[0].events: found 'h:5557', expected tcp://HOST:PORT",
            id="events_address",
        ),
        pytest.param(
            "model: {remoteTokenizer: {url: 'render:8000'}}",
            "line 3, model.remoteTokenizer.url: found 'render:8000', expected a URL such as http://10.0.0.1:8000",
            id="remote_tokenizer",
        ),
        pytest.param(
            "endpoints: {static: [{name: a, address: 'h:1', replay: 'h:5557'}]}",
            "line 3, endpoints.static[0].replay: found 'h:5557', expected tcp://HOST:PORT",
            id="replay_address",
        ),
        pytest.param(
            "endpoints: {static: [{name: a, address: 'h:1', metrics: /metrics}]}",
            "line 3, endpoints.static[0].metrics: found '/metrics', expected a URL",
            id="metrics_url",
        ),
        pytest.param(
            "endpoints: {static: [{name: a, address: 'h:1', events: 'tcp://h:65535', dataParallelSize: 2}]}",
            "line 3, endpoints.static[0].dataParallelSize: rank 1 of 'tcp://h:65535' would be on port 65536",
            id="rank_above_the_last_port",
        ),
        pytest.param(
            "endpoints: {static: [{name: a, address: 'h:1', events: 'ipc:///x', dataParallelSize: 2}]}",
            "line 3, endpoints.static[0].dataParallelSize: 'ipc:///x' serves one data-parallel rank",
            id="ranks_on_ipc",
        ),
        pytest.param(
            "endpoints: {file: x.yaml, static: [{name: a, address: 'h:1'}]}",
            "line 3, endpoints.file: found 'x.yaml' beside endpoints.static; keep one",
            id="two_lists_of_endpoints",
        ),
        pytest.param(
            "events: {mode: bind, bind: '5557'}",
            "line 3, events.bind: found '5557', expected tcp://*:5557 for every interface",
            id="bind_address",
        ),
        pytest.param(
            "tiers: [{name: gpu}, {name: gpu}]",
            "line 3, tiers[1].name: found 'gpu', which is also the tier name at tiers[0].name",
            id="tier_twice",
        ),
        pytest.param(
            "tiers: [{name: gpu, media: [GPU]}, {name: cpu, media: [CPU, gpu]}]",
            "line 3, tiers[1].media[1]: found 'GPU', which is also the medium at tiers[0].media[0]",
            id="medium_in_two_tiers",
        ),
        pytest.param(
            "weights: {queue: 1}\nplugins: [{type: queue-scorer}]",
            "line 3, weights: found weights beside plugins; write the weights in schedulingProfiles, or remove plugins",
            id="weights_beside_plugins",
        ),
        pytest.param(
            "plugins: [{type: a}, {type: a}]",
            "line 3, plugins[1].type: found 'a', which is also the plugin name at plugins[0].type",
            id="plugin_name_twice",
        ),
        pytest.param(
            "weights: {queue: .inf}",
            "line 3, weights.queue: found infinity, expected a finite number",
            id="infinite",
        ),
        pytest.param(
            "metricsScrape: {interval: 3s}",
            "line 3, metricsScrape: found 2s, expected more than the interval of 3s",
            id="stale_before_the_next_scrape",
        ),
        pytest.param(
            "snapshot: {interval: 20m}",
            "line 3, snapshot.maxAge: found 900s, expected more than the interval of 1200s",
            id="too_old_before_the_next_write",
        ),
        pytest.param(
            "extProc: {maxBodyBytes: 100, maxHeldBytes: 99}",
            "line 3, extProc.maxHeldBytes: found 99, expected at least maxBodyBytes of 100",
            id="room_for_less_than_one_body",
        ),
        pytest.param(
            "admission: {objectives: {batch: -1}, metricsStalenessThreshold: 50ms}",
            "line 3, admission.metricsStalenessThreshold: found 0.05s, expected more than metricsScrape.interval of 0.05s",
            id="saturated_until_the_next_scrape",
        ),
        pytest.param(
            "model: {names: [a]}\nmodels: [{names: [b]}]",
            "line 3, model: found beside models; put it into that list",
            id="model_and_models",
        ),
        pytest.param(
            "models: [{endpointLabels: {a: b}}]",
            "line 3, models[0].names: missing, expected the names that requests have for the model",
            id="model_without_name",
        ),
        pytest.param(
            "models: [{names: [a], endpointLabels: {a: b}}, {names: [b]}]",
            "line 3, models[1].endpointLabels: missing, expected the labels of its endpoints",
            id="model_on_every_server_beside_others",
        ),
        pytest.param(
            "models: [{names: [a], endpointLabels: {a: b}}, {names: [b], adapters: [a], endpointLabels: {a: c}}]",
            "line 3, models[1].adapters[0]: found 'a', which is also the name at models[0].names[0]",
            id="name_of_two_models",
        ),
        pytest.param(
            "metricsScrape: {idleInterval: 2s}",
            "line 3, metricsScrape.idleInterval: found 2s, expected from the interval of 50ms to less than staleAfter of 2s",
            id="idle_until_stale",
        ),
        pytest.param(
            "metricsScrape: {idleInterval: 20ms}",
            "line 3, metricsScrape.idleInterval: found 20ms, expected from the interval of 50ms",
            id="idle_more_often_than_busy",
        ),
        pytest.param(
            "metricsScrape: {engine: vlm}",
            "line 3, metricsScrape.engine: found 'vlm', expected auto or vllm or sglang or ",
            id="unknown_engine",
        ),
        pytest.param(
            "metricsScrape: {engines: {my: {running: r}}}",
            "line 3, metricsScrape.engines.my.waiting: missing, expected the series of queued requests",
            id="engine_without_queue",
        ),
        pytest.param(
            "metricsScrape: {engines: {vllm: {waiting: ''}}}",
            "line 3, metricsScrape.engines.vllm.waiting: missing, expected the series of queued requests",
            id="known_engine_whose_queue_is_taken_away",
        ),
        pytest.param(
            "metricsScrape: {engines: {vllm: {running: 'a b'}}}",
            "line 3, metricsScrape.engines.vllm.running: found 'a b', expected a series such as name or ",
            id="series",
        ),
        pytest.param(
            "server: {tls: {certFile: tls.crt}}",
            "line 3, server.tls.keyFile: found none, expected the file that belongs to the other",
            id="certificate_without_key",
        ),
        pytest.param(
            "server: {tls: {keyFile: tls.key}}",
            "line 3, server.tls.certFile: found none, expected the file that belongs to the other",
            id="key_without_certificate",
        ),
        pytest.param(
            "server: {tls: {certFile: tls.crt, keyFile: tls.key, selfSigned: true}}",
            "line 3, server.tls.selfSigned: found true beside certFile; keep one of the two",
            id="two_certificates",
        ),
        pytest.param(
            "server: {auth: {protectReads: true}}",
            "line 3, server.auth.bearerTokenFile: found none beside protectReads, expected the file with the token",
            id="protected_reads_without_token",
        ),
        pytest.param(
            "server: {tls: {clientCaFile: ca.crt}}",
            "line 3, server.tls.clientCaFile: found a file, but no certFile that switches TLS on",
            id="clients_vouched_for_in_the_clear",
        ),
        pytest.param(
            "endpoints: {kubernetes: {inferencePool: a, endpointSelector: x=y}}",
            "line 3, endpoints.kubernetes.endpointSelector: found 'x=y' beside inferencePool; keep one",
            id="pool_and_selector",
        ),
        pytest.param(
            "endpoints: {kubernetes: {inferencePool: a, targetPorts: [8000]}}",
            "line 3, endpoints.kubernetes.targetPorts: found ports beside inferencePool, which has its own",
            id="pool_and_ports",
        ),
        pytest.param(
            "endpoints: {kubernetes: {endpointSelector: x=y}}",
            "line 3, endpoints.kubernetes.targetPorts: found none, expected the ports that serve, such as [8000]",
            id="selector_without_ports",
        ),
        pytest.param(
            "endpoints: {kubernetes: {namespace: x}}",
            "line 3, endpoints.kubernetes: found neither inferencePool nor endpointSelector, expected one of them",
            id="neither_pool_nor_selector",
        ),
        pytest.param(
            "endpoints: {static: [{name: a, address: 'h:1'}], kubernetes: {inferencePool: a}}",
            "line 3, endpoints.kubernetes: found beside endpoints.static; keep one",
            id="pool_and_static",
        ),
        pytest.param(
            "endpoints: {file: e.yaml, kubernetes: {inferencePool: a}}",
            "line 3, endpoints.kubernetes: found beside endpoints.file; keep one",
            id="pool_and_file",
        ),
        pytest.param(
            "leaderElection: {renewDeadline: 15s}",
            "line 3, leaderElection.renewDeadline: found 15s, expected less than leaseDuration of 15s",
            id="lead_longer_than_the_lease",
        ),
        pytest.param(
            "leaderElection: {retryPeriod: 10s}",
            "line 3, leaderElection.retryPeriod: found 10s, expected less than renewDeadline of 10s",
            id="renewed_too_late",
        ),
        pytest.param(
            "server: {workers: 2, health: ''}\nleaderElection: {enabled: true}",
            "line 4, leaderElection.enabled: found true with several workers",
            id="workers_that_stand_against_each_other",
        ),
        pytest.param(
            "server: {workers: 2}",
            "line 3, server.health: found '0.0.0.0:9003': with 2 workers, port 9003 is also one of server.extProc",
            id="ports_of_workers_meet",
        ),
        pytest.param(
            "server: {workers: 2, health: '', metrics: '0.0.0.0:65535'}",
            "line 3, server.metrics: found '0.0.0.0:65535', but 2 workers need ports above 65535",
            id="ports_of_workers_end",
        ),
        pytest.param(
            "server: {workers: 2, health: ''}\nevents: {mode: bind}",
            "line 4, events.mode: found 'bind' with several workers, which cannot listen on one address",
            id="workers_that_bind",
        ),
    ],
)
def test_each_mistake_is_named_with_line_and_path(config_file: Path, body: str, problem: str) -> None:
    config_file.write_text(f"{HEAD}{body}\n")

    message = message_of(config_file).replace("metricsScrape.staleAfter", "metricsScrape")
    assert message.startswith(f"config.yaml: {problem}")
    assert "\n" not in message


def test_all_mistakes_are_listed_in_the_order_of_the_file(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}weights: {{queue: -1}}\nmodel: {{name: x}}\nserver: 3\n")

    assert message_of(config_file).splitlines() == [
        "config.yaml: 3 problems",
        "  line 3, weights.queue: found -1, expected a number of at least 0",
        "  line 4, model.name: unknown key; did you mean 'names'? allowed: names, adapters, endpointLabels, tokenizer, kvBytesPerToken, chat, remoteTokenizer",
        "  line 5, server: found 3, expected a mapping with keys extProc, health, rest, metrics, workers, tls, auth",
    ]


def test_problems_of_further_checks_get_their_lines(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}plugins:\n- type: a\n- type: b\n")

    with pytest.raises(ConfigError) as raised:
        load_file(config_file, check=lambda config: [Problem(config.plugins[1].type, ("plugins", 1, "type"))])

    assert str(raised.value).endswith("config.yaml: line 5, plugins[1].type: b")


def test_further_checks_are_not_asked_when_the_file_is_wrong(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}weights: {{queue: -1}}\n")

    def fail(_: KVAtlasConfig) -> list[Problem]:
        raise AssertionError

    with pytest.raises(ConfigError):
        load_file(config_file, check=fail)


def test_listeners_may_be_off_or_on_free_ports(config_file: Path) -> None:
    config_file.write_text(
        f"{HEAD}server: {{extProc: '', health: '', rest: '127.0.0.1:0', metrics: '127.0.0.1:0'}}\n"
    )

    assert load_config(config_file).server.ext_proc == ""


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"- a\n", "line 1: found a list, expected a mapping with keys", id="list"),
        pytest.param(b"kind: KVAtlasConfig\nkind: x\n", "line 2: key 'kind' comes twice", id="repeated_key"),
        pytest.param(b"a:\n\tb: 1\n", "line 2: a tab where YAML allows spaces only", id="tab"),
        pytest.param(
            b"kind: Pod\n",
            "line 1, kind: found 'Pod', expected 'KVAtlasConfig' or 'EndpointPickerConfig'",
            id="kind",
        ),
        pytest.param(b"server: {}\n", "line 1, kind: missing, expected 'KVAtlasConfig' or", id="no_kind"),
        pytest.param(
            b"kind: KVAtlasConfig\n", "line 1, apiVersion: missing, expected 'kvatlas/v1'", id="version"
        ),
    ],
)
def test_unusable_file_is_one_clear_line(config_file: Path, raw: bytes, problem: str) -> None:
    config_file.write_bytes(raw)

    message = message_of(config_file)
    assert message.startswith(f"config.yaml: {problem}")
    assert "\n" not in message


def test_missing_file_is_named(config_file: Path) -> None:
    assert message_of(config_file) == "config.yaml: no such file"


def test_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    assert message_of(tmp_path) == f"{tmp_path.name}: is a folder, expected a YAML file"


def test_file_below_a_file_is_named(config_file: Path) -> None:
    config_file.write_text(HEAD)

    assert message_of(config_file / "more.yaml") == "more.yaml: cannot be read: Not a directory"


@pytest.mark.parametrize(
    ("written", "resolved"),
    [
        pytest.param("tokenizers/tiny", "{folder}/tokenizers/tiny", id="relative"),
        pytest.param("/models/tiny", "/models/tiny", id="absolute"),
        pytest.param("", "", id="none"),
    ],
)
def test_paths_are_taken_from_the_folder_of_the_file(config_file: Path, written: str, resolved: str) -> None:
    recorder = f"recorder: {{folder: '{written}', keyFile: '{written}'}}"
    config_file.write_text(
        f"{HEAD}model: {{tokenizer: '{written}'}}\nsnapshot: {{file: '{written}'}}\n{recorder}\n"
        f"shadow: {{file: '{written}'}}\n"
    )

    config = load_config(config_file)
    wanted = resolved.format(folder=config_file.parent)
    assert (config.model.tokenizer, config.snapshot.file) == (wanted, wanted)
    assert (config.recorder.folder, config.recorder.key_file) == (wanted, wanted)
    assert config.shadow.file == wanted


def test_other_paths_of_the_model_are_taken_from_the_folder_of_the_file(config_file: Path) -> None:
    config_file.write_text(
        f"{HEAD}model: {{chat: {{template: a.jinja}}, remoteTokenizer: {{url: endpoints, apiKeyFile: /run/key}}}}\n"
    )

    model = load_config(config_file).model
    assert model.chat.template == str(config_file.parent / "a.jinja")
    assert (model.remote_tokenizer.api_key_file, model.tokenizer) == ("/run/key", "")


def test_kubeconfig_is_taken_from_the_folder_of_the_file(config_file: Path) -> None:
    config_file.write_text(
        f"{HEAD}endpoints: {{kubernetes: {{inferencePool: a, kubeconfig: kube/config}}}}\n"
    )

    found = load_config(config_file).endpoints.kubernetes.kubeconfig
    assert found == str(config_file.parent / "kube" / "config")


def test_tokenizer_is_absolute_for_a_file_in_the_working_directory(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text(f"{HEAD}model: {{tokenizer: tiny}}\n")
    monkeypatch.chdir(config_file.parent)

    assert load_config("config.yaml").model.tokenizer == str(config_file.parent / "tiny")


def test_file_of_endpoints_is_taken_from_the_folder_of_the_file(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}endpoints: {{file: servers/all.yaml}}\n")

    assert load_config(config_file).endpoints.file == str(config_file.parent / "servers" / "all.yaml")
