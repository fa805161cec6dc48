"""docs/reference-compatibility.md: written from the code, and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvatlas.app.cli.flag_table import FLAGS
from kvatlas.configs.errors import ConfigError
from kvatlas.routing.control_headers import CONTROL_HEADERS
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.reference import NO_EFFECT
from support.compatibility.flags import NAMES, flag_rows
from support.compatibility.page import PAGE, page, reference_types, what_is_done, what_is_named
from support.compatibility.plugins import USED
from support.compatibility.published import refused_rows
from support.compatibility.requests import HEADERS
from support.compatibility.series import HERE, OLDER, PREFIX
from support.tree import ROOT

TYPES = sorted({each.rstrip("*") for of_a_kind in reference_types().values() for each in of_a_kind})
SERIES = ROOT / "tests" / "golden" / "picker" / "plugins" / "series-names.txt"
RUNTIME = ("certwatcher_", "controller_runtime_")
"""Beginnings of series of the reference's libraries."""


def test_page_is_written_from_the_code() -> None:
    assert PAGE.read_text() == page(), "run `make compatibility`"


def test_every_type_of_the_reference_is_listed_once() -> None:
    types = [each.rstrip("*") for of_a_kind in reference_types().values() for each in of_a_kind]

    assert len(types) == len(set(types))
    assert {*types} >= NO_EFFECT.keys() | USED.keys()


@pytest.mark.parametrize("plugin_type", TYPES)
def test_type_is_called_refused_when_the_program_refuses_it(plugin_type: str, tmp_path: Path) -> None:
    file = tmp_path / "epp.yaml"
    file.write_text(
        f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{{type: {plugin_type}}}]\n"
    )
    try:
        load_scheduled(file)
        is_unknown = False
    except ConfigError as error:
        is_unknown = "which kvatlas does not have" in str(error)

    assert what_is_done(plugin_type).startswith("refused") == is_unknown


def test_type_that_is_read_as_another_one_names_it() -> None:
    other = what_is_named("prefix-cache-scorer")
    assert what_is_done("multicluster-prefix-cache-scorer") == f"as {other}"


def test_published_files_that_the_reference_refuses_are_on_the_page() -> None:
    rows = dict(refused_rows())

    assert rows["token-producer has no `vllm.http` (the field is now `vllm.url`)"] == "refused, too"
    assert rows["unknown top-level key `data`"] == "accepted as an older form"
    assert all(reason in PAGE.read_text() for reason in rows)


def test_every_header_that_is_removed_from_clients_is_listed() -> None:
    assert HEADERS.keys() >= CONTROL_HEADERS


def test_no_flag_of_the_reference_is_refused() -> None:
    assert [name for name, text in flag_rows() if text == "refused"] == []
    assert {*NAMES} >= FLAGS.keys()


def test_every_series_of_the_reference_is_listed() -> None:
    names = {line.split()[0] for line in SERIES.read_text().splitlines()}

    assert {name for name in names if not name.startswith(RUNTIME)} == OLDER.keys() | {
        f"{PREFIX}{name}" for name in HERE
    }
    assert HERE.keys() >= set(OLDER.values())


def test_series_that_stand_for_those_of_the_reference_exist() -> None:
    documented = re.findall(r"^\| `(kvatlas_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)

    named = {name for text in HERE.values() for name in re.findall(r"`(\w+)`", text)}
    assert named <= set(documented)
