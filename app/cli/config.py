"""Commands that look at configuration files."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import typer

from .exit_status import NOT_GOOD, fail, load_or_fail
from .options import FileArgument, IgnoreUnknown

app = typer.Typer(help="Look at configuration files.", no_args_is_help=True)


@app.command("check")
def config_check(file: FileArgument, *, ignore_unknown_plugins: IgnoreUnknown = False) -> None:
    """Check a file, the endpoints it lists and its shadow. Status 1: not valid; the errors name place and reason."""
    from rich.console import Console

    from ...routing.observers.shadow.shadow import shadow_problem
    from ...routing.plan.config_files import ConfigFiles
    from ...routing.plan.plan import make_plan

    loaded = load_or_fail(ConfigFiles(file, ignore_unknown=ignore_unknown_plugins).load, refused=NOT_GOOD)
    plan = make_plan(loaded.config)
    if problem := shadow_problem(plan.config):
        fail(f"{file}: shadow.{'policy' if plan.config.shadow.policy else 'file'}: {problem}", NOT_GOOD)
    console = Console(soft_wrap=True, highlight=False)
    for note in (*loaded.notes, *plan.notes):
        console.print(note, markup=False)
    n_endpoints, n_scorers = len(plan.config.endpoints.static), len(plan.profile.scorers)
    console.print(
        f"{file}: good, {n_endpoints} endpoints, {len(plan.config.tiers)} tiers, {n_scorers} scorers"
    )


@app.command("show")
def config_show(file: FileArgument, *, ignore_unknown_plugins: IgnoreUnknown = False) -> None:
    """Print a file as kvatlas understands it, defaults included and secrets masked, and what has no effect. Status 1: not valid."""
    import msgspec

    from ...configs.plain import plain
    from ...configs.secrets import masked
    from ...routing.plan.beyond import beyond_reference
    from ...routing.plan.load import load_scheduled
    from ...routing.plan.plan import make_plan

    loaded = load_or_fail(
        lambda: load_scheduled(file, ignore_unknown=ignore_unknown_plugins), refused=NOT_GOOD
    )
    plan = make_plan(loaded.config)
    sys.stdout.write(msgspec.yaml.encode(masked(plain(plan.config))).decode())
    _print_comment("without effect", (*loaded.notes, *plan.notes))
    if loaded.is_reference:
        _print_comment("beyond the reference", beyond_reference(plan))


def _print_comment(title: str, lines: Iterable[str]) -> None:
    """Print a list as a comment of the file, so that all of the output stays a valid file; nothing if it is empty."""
    if entries := list(lines):
        sys.stdout.write("".join(f"# {line}\n" for line in (f"{title}:", *(f"- {each}" for each in entries))))


@app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of configuration files."""
    from ...routing.plan.json_schema import json_schema

    sys.stdout.write(json_schema())
