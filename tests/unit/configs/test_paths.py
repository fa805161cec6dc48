"""Paths in configuration files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from msgspec.structs import fields

from kvatlas.configs.loader import load_config
from kvatlas.configs.paths import PathText, with_absolute_paths
from kvatlas.configs.schema import KVAtlasConfig
from support.config_files import HEAD

HEAD_KEYS: dict[str, object] = {"kind": "KVAtlasConfig", "apiVersion": "kvatlas/v1"}
Section = type[msgspec.Struct]
PATH_WORDS = ("file", "folder", "kubeconfig", "path", "template", "tokenizer")
"""Last words of keys that name a file or folder."""


def sections(top: Section) -> Iterator[tuple[tuple[str, ...], Section]]:
    """Yield every section under `top` that a key has to itself, with the path of keys to it."""
    yield (), top
    for field in fields(top):
        if isinstance(field.default, msgspec.Struct):
            for path, section in sections(type(field.default)):
                yield (field.name, *path), section


TEXTS: dict[tuple[str, ...], object] = {
    (*path, field.name): field.type
    for path, section in sections(KVAtlasConfig)
    for field in fields(section)
    if field.type in (str, PathText)
}
"""Path of keys -> type, of every text in the configuration."""


def at(config: object, path: tuple[str, ...]) -> object:
    """Return the value under the keys of `path`."""
    for name in path:
        config = getattr(config, name)
    return config


def camel(name: str) -> str:
    """Return the YAML key of a field."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@pytest.mark.parametrize("path", TEXTS, ids=".".join)
def test_key_has_the_type_of_a_path_when_its_name_is_that_of_a_file(path: tuple[str, ...]) -> None:
    assert (TEXTS[path] == PathText) == (path[-1].rpartition("_")[2] in PATH_WORDS)


@pytest.mark.parametrize("path", [path for path, kind in TEXTS.items() if kind == PathText], ids=".".join)
def test_every_path_key_is_resolved(path: tuple[str, ...]) -> None:
    data: object = "sub/x"
    for name in reversed(path):
        data = {camel(name): data}
    assert isinstance(data, dict)
    config = msgspec.convert(HEAD_KEYS | cast("dict[str, object]", data), KVAtlasConfig)

    assert at(with_absolute_paths(config, Path("/folder")), path) == "/folder/sub/x"


def test_paths_in_a_list_of_sections_are_resolved(config_file: Path) -> None:
    models = "[{names: [a], tokenizer: a, endpointLabels: {m: a}}, {names: [b], endpointLabels: {m: b}}]"
    config_file.write_text(f"{HEAD}models: {models}\n")

    found = [model.tokenizer for model in load_config(config_file).models]
    assert found == [str(config_file.parent / "a"), ""]


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
