"""Published files of the reference picker: those that it accepts load here, the others name place and mend.

The files, and what the reference says to each, are in `tests/golden/epp-configs` with their source.
"""

from __future__ import annotations

import re

import pytest

from kvatlas.configs.errors import ConfigError
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.plan import make_plan
from support.tree import ROOT

FOLDER = ROOT / "tests" / "golden" / "epp-configs"
FILES = {path.name[:3]: path for path in sorted(FOLDER.glob("*.yaml"))}
VERDICTS = dict(re.findall(r"^\| (\d{3}) \| (\w+)", (FOLDER / "README.md").read_text(), re.MULTILINE))
REFUSED = sorted(number for number, verdict in VERDICTS.items() if verdict == "invalid")
"""Files that the reference refuses, at the commit in the README."""

OLDER = {
    "114": "prefix-cache-scorer with an index of its own",
    "117": "prefix-cache-scorer with an index of its own, as in configs/tiered-v0.4.yaml",
    "121": "prefix-cache-scorer with an index of its own",
    "123": "prefix-cache-scorer with an index of its own",
    "124": "prefix-cache-scorer with an index of its own",
    "139": "section data",
    "146": "feature gate enableLegacyMetrics",
    "186": "a tokenizer in indexerConfig",
}
"""Files of older versions that the reference no longer accepts and that mean the same here -> what is older."""

_NO_SCORER = "'kv-cache-scorer', which kvatlas does not have"
_URL = "plugins[0].parameters.vllm.http: unknown key; allowed: url, "
_OF_THE_PRODUCER = "plugins[0].parameters.indexerConfig.tokenProcessorConfig: unknown key; did you mean"
MENDS = {
    "007": "plugins[3].parameters.cacheSizeInMB: unknown key; did you mean 'cacheSizeInMBPerServer'?",
    "112": "plugins[0].type: found 'custom-scorer', which kvatlas does not have",
    "113": _URL,
    "118": _URL,
    "119": _OF_THE_PRODUCER,
    "120": _URL,
    "122": _OF_THE_PRODUCER,
    "185": _NO_SCORER,
    "187": f"{_NO_SCORER} (--ignore-unknown-plugins leaves it out); closest: prefix-cache-scorer, kv-cache-utilization-scorer",
    "188": _NO_SCORER,
    "189": _NO_SCORER,
    "191": _NO_SCORER,
    "192": _NO_SCORER,
}
"""File that the reference refuses -> part of the error here."""


ACCEPTED = sorted(set(FILES) - set(REFUSED))


def problems(number: str) -> str:
    """Return the error of loading a file, empty if it loads."""
    try:
        make_plan(load_scheduled(FILES[number]).config)
    except ConfigError as error:
        return str(error)
    return ""


def test_every_file_has_a_verdict() -> None:
    assert VERDICTS.keys() == FILES.keys()
    assert (len(ACCEPTED), len(REFUSED)) == (62, 21)


@pytest.mark.parametrize("number", ACCEPTED)
def test_file_that_the_reference_accepts_loads(number: str) -> None:
    assert problems(number) == ""


@pytest.mark.parametrize("number", sorted(set(REFUSED) - OLDER.keys()))
def test_file_that_the_reference_refuses_names_the_place_and_the_mend(number: str) -> None:
    message = problems(number)

    assert MENDS[number] in message
    assert "line " in message


@pytest.mark.parametrize("number", OLDER)
def test_file_of_an_older_version_loads(number: str) -> None:
    assert number in REFUSED
    assert problems(number) == ""
