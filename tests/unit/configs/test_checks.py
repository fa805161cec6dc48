"""Contradictions in files whose types are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.loader import load_config
from support.config_files import HEAD, message_of


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
            "line 3, endpoints.file: found 'x.yaml' together with endpoints.static; keep one",
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
            "line 3, weights: found weights together with plugins; write the weights in schedulingProfiles, or remove plugins",
            id="weights_and_plugins",
        ),
        pytest.param(
            "plugins: [{type: a}, {type: a}]",
            "line 3, plugins[1].type: found 'a', which is also the plugin name at plugins[0].type",
            id="plugin_name_twice",
        ),
        pytest.param(
            "weights: {queue: .inf}",
            "line 3, weights.queue: found infinity, expected a number from 0 to 1000000000",
            id="infinite",
        ),
        pytest.param(
            "weights: {queue: 1.7e+308}",
            "line 3, weights.queue: found 1.7e+308, expected a number from 0 to 1000000000",
            id="totals_would_overflow",
        ),
        pytest.param(
            "plugins: [{type: a}]\nschedulingProfiles: [{plugins: [{pluginRef: a, weight: -1.7e+308}]}]",
            "line 4, schedulingProfiles[0].plugins[0].weight: found -1.7e+308, expected a number from -1000000000 to 1000000000",
            id="totals_of_plugins_would_overflow",
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
            "line 3, model: found together with models; move it into that list",
            id="model_and_models",
        ),
        pytest.param(
            "models: [{endpointLabels: {a: b}}]",
            "line 3, models[0].names: missing, expected the names of the model in requests",
            id="model_without_name",
        ),
        pytest.param(
            "models: [{names: [a], endpointLabels: {a: b}}, {names: [b]}]",
            "line 3, models[1].endpointLabels: missing, expected the labels of its endpoints",
            id="one_of_several_models_on_every_server",
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
            "line 3, server.tls.selfSigned: found true together with certFile; keep one of the two",
            id="two_certificates",
        ),
        pytest.param(
            "server: {auth: {protectReads: true}}",
            "line 3, server.auth.bearerTokenFile: found none together with protectReads, expected the file with the token",
            id="protected_reads_without_token",
        ),
        pytest.param(
            "server: {auth: {metricsReview: true, metricsTokenFile: t}}",
            "line 3, server.auth.metricsReview: found true together with metricsTokenFile; keep one of the two",
            id="two_guards_of_metrics",
        ),
        pytest.param(
            "server: {tls: {clientCaFile: ca.crt}}",
            "line 3, server.tls.clientCaFile: found a file without certFile, which switches TLS on",
            id="client_authorities_without_tls",
        ),
        pytest.param(
            "endpoints: {kubernetes: {inferencePool: a, endpointSelector: x=y}}",
            "line 3, endpoints.kubernetes.endpointSelector: found 'x=y' together with inferencePool; keep one",
            id="pool_and_selector",
        ),
        pytest.param(
            "endpoints: {kubernetes: {inferencePool: a, targetPorts: [8000]}}",
            "line 3, endpoints.kubernetes.targetPorts: found ports together with inferencePool, which has its own",
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
            "line 3, endpoints.kubernetes: found together with endpoints.static; keep one",
            id="pool_and_static",
        ),
        pytest.param(
            "endpoints: {file: e.yaml, kubernetes: {inferencePool: a}}",
            "line 3, endpoints.kubernetes: found together with endpoints.file; keep one",
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
            "events: {bindAllow: [10.0.0.0/8, 10.0.0.1/8]}",
            "line 3, events.bindAllow[1]: found '10.0.0.1/8', expected a network such as 10.0.0.0/8",
            id="network_of_publishers",
        ),
        pytest.param(
            "events: {bindAllow: []}",
            "line 3, events.bindAllow: found no network, so that no publisher could connect",
            id="no_network_of_publishers",
        ),
        pytest.param(
            "events: {mode: bind, curve: {keyFile: k}}",
            "line 3, events.curve.peersFolder: missing, expected both keyFile and peersFolder",
            id="curve_without_peers",
        ),
        pytest.param(
            "events: {mode: bind, curve: {peersFolder: p}}",
            "line 3, events.curve.keyFile: missing, expected both keyFile and peersFolder",
            id="curve_without_key",
        ),
        pytest.param(
            "events: {curve: {keyFile: k, peersFolder: p}}",
            "line 3, events.curve: found keys with mode 'connect', where they have no use",
            id="curve_with_connect",
        ),
        pytest.param(
            "rest: {registerAllow: [10.0.0.0/8, engines]}",
            "line 3, rest.registerAllow[1]: found 'engines', expected a network such as 10.0.0.0/8",
            id="network_of_registered",
        ),
        pytest.param(
            "server: {workers: 2, health: '', rest: nowhere}",
            "line 3, server.rest: found 'nowhere'",
            id="listener_of_workers_without_port",
        ),
        pytest.param(
            "server: {workerTimeout: 500ms}",
            "line 3, server.workerTimeout: found 500ms, expected at least 1s; a busy worker would be killed",
            id="timeout_of_workers_too_short",
        ),
        pytest.param(
            "server: {workers: 2, rest: '0.0.0.0:9001'}",
            "line 3, server.rest: found '0.0.0.0:9001': with 2 workers, port 9002 is also one of server.extProc",
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


def test_lease_in_whole_seconds_stays_above_the_deadline_of_its_holder(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}leaderElection: {{leaseDuration: 2500ms, renewDeadline: 2400ms}}\n")

    election = load_config(config_file).leader_election

    assert election.lease_s == 3 > election.renew_deadline
