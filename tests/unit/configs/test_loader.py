"""Configuration files as a whole: problems with their lines, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.errors import ConfigError, Problem
from kvatlas.configs.loader import load_config, load_file
from kvatlas.configs.reading import MAX_FILE_BYTES
from kvatlas.configs.schema import KVAtlasConfig
from support.config_files import HEAD, message_of


def test_head_alone_is_the_default_configuration(config_file: Path) -> None:
    config_file.write_text(HEAD)

    assert load_config(str(config_file)) == KVAtlasConfig(api_version="kvatlas/v1")


def test_all_mistakes_are_listed_in_the_order_of_the_file(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}weights: {{queue: -1}}\nmodel: {{name: x}}\nserver: 3\n")

    assert message_of(config_file).splitlines() == [
        "config.yaml: 3 problems",
        "  line 3, weights.queue: found -1, expected a number from 0 to 1000000000",
        "  line 4, model.name: unknown key; did you mean 'names'? allowed: names, adapters, endpointLabels, tokenizer, maxModelLen, kvBytesPerToken, chat, remoteTokenizer",
        "  line 5, server: found 3, expected a mapping with keys extProc, health, rest, metrics, workers, workerTimeout, drainNotice, drainTimeout, proxyAdmin, tls, metricsTls, auth",
    ]


def test_problems_of_further_checks_get_their_lines(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}plugins:\n- type: a\n- type: b\n")

    with pytest.raises(ConfigError) as raised:
        load_file(config_file, check=lambda config: [Problem(config.plugins[1].type, ("plugins", 1, "type"))])

    assert str(raised.value).endswith("config.yaml: line 5, plugins[1].type: b")


def test_further_checks_are_not_called_when_the_file_has_problems(config_file: Path) -> None:
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


def test_file_that_is_far_too_large_is_not_parsed(config_file: Path) -> None:
    config_file.write_text(f"{HEAD}#{'x' * MAX_FILE_BYTES}\n")
    assert message_of(config_file).startswith("config.yaml: has more than 4194304 bytes")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"- a\n", "line 1: found a list, expected a mapping with keys", id="list"),
        pytest.param(b"kind: KVAtlasConfig\nkind: x\n", "line 2: key 'kind' is repeated", id="repeated_key"),
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
