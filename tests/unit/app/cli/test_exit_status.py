"""The exit status of each command, as far as it needs no running process, and its row in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from kvatlas.app.cli.main import app
from support.command import invoked
from support.tree import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text()
ROW = re.compile(r"^\| `kvatlas ([\w ]+)` \|", re.MULTILINE)
NOBODY = "http://127.0.0.1:1"
HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
FILES = {
    "good.yaml": HEAD + "endpoints: {static: [{name: a, address: 'h:1'}]}\n",
    "refused.yaml": HEAD + "weights: {queue: heavy}\n",
    "unlisted.yaml": HEAD + "endpoints: {file: absent.yaml}\n",
    "failing.yaml": HEAD + "server: {auth: {bearerTokenFile: absent}}\n",
    "deep.json": "[" * 100_000,
    "two-lines": "abc\ndef\n",
    "marked": "\ufeffabc\n",
    "trace.jsonl": '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n',
}
REFUSED = "weights.queue: found 'heavy'"
ABSENT = "absent.yaml: no such file"
UNASKED = "is kvatlas there? see --url"


def commands(of: typer.Typer, before: str = "") -> Iterator[str]:
    """Return the names of all commands, as users type them."""
    for command in of.registered_commands:
        assert command.callback is not None
        yield before + (command.name or command.callback.__name__)
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{before}{group.name} ")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "latin.json").write_text('["caf\u00e9"]', encoding="latin-1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        pytest.param("config check good.yaml", 0, "", id="check_good"),
        pytest.param("config check refused.yaml", 1, REFUSED, id="check_refused"),
        pytest.param("config check unlisted.yaml", 1, ABSENT, id="check_refused_list"),
        pytest.param("config check absent.yaml", 1, ABSENT, id="check_absent"),
        pytest.param("config check", 2, "Missing argument 'FILE'", id="check_nothing"),
        pytest.param("config show good.yaml", 0, "", id="show_good"),
        pytest.param("config show refused.yaml", 1, REFUSED, id="show_refused"),
        pytest.param("config show --all good.yaml", 2, "No such option: --all", id="show_unknown_flag"),
        pytest.param("config schema", 0, "", id="schema"),
        pytest.param("doctor --config good.yaml", 0, "", id="doctor_good"),
        pytest.param("doctor --config failing.yaml", 1, "", id="doctor_failing"),
        pytest.param("doctor --config refused.yaml", 1, REFUSED, id="doctor_refused"),
        pytest.param(f"doctor --url {NOBODY}", 2, UNASKED, id="doctor_unasked"),
        pytest.param(f"explain --last --url {NOBODY}", 2, UNASKED, id="explain_unasked"),
        pytest.param("explain", 2, "give the REQUEST_ID of a request, or --last", id="explain_nothing"),
        pytest.param(f"query --prompt hi --url {NOBODY}", 2, UNASKED, id="query_unasked"),
        pytest.param(
            "query --messages deep.json", 2, "--messages: deep.json cannot be used", id="query_deep"
        ),
        pytest.param(
            "query --messages latin.json", 2, "--messages: latin.json cannot be used", id="query_latin"
        ),
        pytest.param(f"top --once --url {NOBODY}", 2, UNASKED, id="top_unasked"),
        pytest.param(f"capacity --url {NOBODY}", 2, UNASKED, id="capacity_unasked"),
        pytest.param("capacity --gib many", 2, "--gib: found 'many'", id="capacity_sizes"),
        pytest.param(f"shadow --url {NOBODY}", 2, UNASKED, id="shadow_unasked"),
        pytest.param(f"recorder --url {NOBODY}", 2, UNASKED, id="recorder_unasked"),
        pytest.param(
            "recorder --token-file absent", 2, "--token-file: cannot read absent", id="recorder_token"
        ),
        pytest.param(
            "doctor --token-file two-lines", 2, "two-lines must hold one token", id="doctor_two_tokens"
        ),
        pytest.param("doctor --token-file marked", 2, "no byte order mark", id="doctor_marked_token"),
        pytest.param("serve --config refused.yaml", 2, REFUSED, id="serve_refused"),
        pytest.param("serve --config absent.yaml", 2, ABSENT, id="serve_absent"),
        pytest.param("serve", 2, "--config FILE is missing", id="serve_nothing"),
        pytest.param("replay trace.jsonl --config refused.yaml", 2, REFUSED, id="replay_refused"),
        pytest.param("replay absent.jsonl --policy random", 2, "absent.jsonl", id="replay_trace"),
        pytest.param("tune trace.jsonl --config absent.yaml", 2, ABSENT, id="tune_absent"),
        pytest.param("simulate --servers 0", 2, "Invalid value for '--servers'", id="simulate_servers"),
        pytest.param("simulate --servers 100000", 2, "Invalid value for '--servers'", id="simulate_many"),
        pytest.param(
            "simulate --host 192.0.2.1", 2, "--host: cannot listen on '192.0.2.1'", id="simulate_other_host"
        ),
        pytest.param("simulate --host ::1", 2, "cannot listen on '::1'", id="simulate_no_host"),
        pytest.param("simulate --host a..b", 2, "--host: cannot listen on 'a..b'", id="simulate_bad_host"),
        pytest.param("simulate --host=", 2, "--host: found an empty address", id="simulate_empty_host"),
        pytest.param(
            "simulate --config .", 2, "--config: . cannot be written: Is a directory", id="simulate_folder"
        ),
        pytest.param("simulate --config refused.yaml/x", 2, "x cannot be written: ", id="simulate_in_file"),
        pytest.param(
            "simulate --gpu-blocks 99999999999999",
            2,
            "Invalid value for '--gpu-blocks'",
            id="simulate_blocks",
        ),
        pytest.param(
            "simulate --gpu-blocks 1000000 --servers 11",
            2,
            "11 servers with 1000000 simulated GPU blocks",
            id="simulate_fleet",
        ),
        pytest.param(
            "replay trace.jsonl --gpu-blocks 99999999999", 2, "for '--gpu-blocks'", id="replay_blocks"
        ),
        pytest.param(
            "replay trace.jsonl --endpoints 8,99999999", 2, "want numbers from 1 to 1024", id="replay_servers"
        ),
        pytest.param(
            "replay trace.jsonl --cpu-gb 1e300", 2, "want numbers from 0 to 1000000", id="replay_cpu"
        ),
        pytest.param("replay trace.jsonl --seeds 99999999", 2, "for '--seeds'", id="replay_seeds"),
        pytest.param(
            "replay agents: --seeds 1000", 2, "2400000 requests for 1000 seed(s)", id="replay_requests"
        ),
        pytest.param(
            "replay trace.jsonl --endpoints 1000 --gpu-blocks 1000000",
            2,
            "1000 servers with 250000",
            id="replay_fleet",
        ),
        pytest.param("simulate --roles prefill=2", 2, "no server decodes", id="simulate_roles"),
        pytest.param("replay trace.jsonl --roles chef=1", 2, "found 'chef=1'", id="replay_roles"),
        pytest.param("demo --seed much", 2, "Invalid value for '--seed'", id="demo_seed"),
    ],
)
def test_command_ends_with_the_status_and_the_message(line: str, status: int, message: str) -> None:
    result = invoked(line.split())

    assert "abc" not in result.output  # in token files
    assert (result.exit_code, message in re.sub(r"[\s│]+", " ", result.stderr)) == (status, True), (
        result.output
    )


def test_page_has_every_command() -> None:
    assert sorted(ROW.findall(PAGE)) == sorted(commands(app))
