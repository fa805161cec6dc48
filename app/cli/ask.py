"""Commands that ask a running process."""

# Each command imports its own report: importing all of them would take longer than the request.

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from ...configs.section import PolicyName
from .exit_status import NOT_GOOD, fail
from .options import LOCAL, AsJson, CaFile, TokenFile, Url, is_given

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

    from .client import Client

ShadowPolicy = Literal[PolicyName, "none"]
Answer = TypeVar("Answer", bound="BaseModel")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(explain)
    app.command()(query)
    app.command()(doctor)
    app.command()(top)
    app.command()(capacity)
    app.command()(recorder)
    app.command()(shadow)
    app.command()(policy)


def explain(
    request_id: Annotated[
        str | None, typer.Argument(metavar="REQUEST_ID", help="x-request-id of the request.")
    ] = None,
    *,
    last: Annotated[bool, typer.Option("--last", help="The newest decision.")] = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a request went to its endpoint."""
    if (request_id is not None) == last:
        fail("give the REQUEST_ID of a request, or --last for the newest one")
    from .explain import fetch_decision, print_decision

    with _client(url, token_file, ca_file) as client:
        decision = fetch_decision(client, request_id)
    if decision is None:
        what = "no decision is kept" if last else f"no decision on request {request_id} is kept"
        fail(f"{what}; the last ones are listed at {client.url}/v1/decisions", NOT_GOOD)
    _show(decision, print_decision, as_json=as_json)


def query(
    *,
    model: Annotated[str, typer.Option(help="Model, as requests name it.")] = "",
    prompt: Annotated[str | None, typer.Option(help="Text of the prompt.")] = None,
    messages: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON list of chat messages; - for standard input.")
    ] = None,
    token_ids: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON list of token ids; - for standard input.")
    ] = None,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show where a prompt is cached, in tokens per endpoint and tier; nothing is routed."""
    from .query import fetch_score, make_question, print_score

    with _client(url, token_file, ca_file) as client:
        question = make_question(model, prompt=prompt, messages=messages, token_ids=token_ids)
        found = fetch_score(client, question)
    _show(found, print_score, as_json=as_json)


def doctor(
    ctx: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Check a file instead of a running kvatlas."),
    ] = None,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Find what is wrong with a deployment, and the line that fixes it. Status 1: a configured part does not work."""
    from .reports.doctor import fetch_diagnosis, print_diagnosis

    if config is not None:
        names = {"url": "--url", "token_file": "--token-file", "ca_file": "--ca-file"}
        if asked := [flag for name, flag in names.items() if is_given(ctx, name)]:
            fail(f"--config checks a file and {' and '.join(asked)} a running kvatlas: give one of them")
        from ...configs.errors import ConfigError
        from .diagnose import diagnose

        try:
            found = diagnose(config)
        except ConfigError as error:
            fail(str(error), NOT_GOOD)
    else:
        with _client(url, token_file, ca_file) as client:
            found = fetch_diagnosis(client)
    _show(found, print_diagnosis, as_json=as_json)
    if found.state == "fail":
        raise typer.Exit(NOT_GOOD)


def capacity(
    *,
    gib: Annotated[
        str, typer.Option(help="Sizes of a server's CPU tier, separated by commas; default 0 to 1000.")
    ] = "",
    by_endpoint: Annotated[bool, typer.Option("--by-endpoint", help="Show each endpoint too.")] = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the hit rate that CPU tiers of other sizes would have on the routed prompts."""
    from .reports.capacity import fetch_capacity, print_capacity

    try:
        sizes = [float(each) for each in gib.split(",")] if gib else []
    except ValueError:
        fail(f"--gib: found {gib!r}, expected numbers separated by commas, such as 0,50,100")
    with _client(url, token_file, ca_file) as client:
        found = fetch_capacity(client, sizes)
    _show(found, partial(print_capacity, by_endpoint=by_endpoint), as_json=as_json)


def shadow(
    *,
    policy: Annotated[
        ShadowPolicy | None,
        typer.Option(help="Compare this policy from now on; none: no comparison. Changes no routing."),
    ] = None,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what another configuration would have picked. Status 1: its file cannot be used."""
    from .reports.shadow import fetch_shadow, print_shadow, set_shadow

    with _client(url, token_file, ca_file) as client:
        if policy is not None:
            set_shadow(client, None if policy == "none" else policy)
        found = fetch_shadow(client)
    _show(found, print_shadow, as_json=as_json)
    if found.refusal is not None:
        raise typer.Exit(NOT_GOOD)


def policy(
    name: Annotated[
        PolicyName | None, typer.Argument(metavar="[weights|latency]", help="Policy to change to.")
    ] = None,
    *,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the policy by which endpoints are chosen, or change it until the configuration file is loaded again."""
    from .reports.policy import change_policy, fetch_policy, print_policy

    with _client(url, token_file, ca_file) as client:
        if name is not None:
            change_policy(client, name)
        found = fetch_policy(client)
    _show(found, print_policy, as_json=as_json)


def recorder(
    *,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of request recording. Status 1: the last write failed."""
    from .reports.recorder import fetch_recorder, print_recorder

    with _client(url, token_file, ca_file) as client:
        found = fetch_recorder(client)
    _show(found, print_recorder, as_json=as_json)
    if found.failure is not None:
        raise typer.Exit(NOT_GOOD)


def top(
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two samples.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one sample; rates cover one interval.")] = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Watch a running kvatlas: endpoints, rates and the last decisions, until Ctrl-C. With --json one line per sample."""
    from rich.console import Console

    from .top.watch import watch

    try:
        with _client(url, token_file, ca_file) as client:
            watch(client, Console(), interval_s=interval, once=once, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


@contextmanager
def _client(url: str, token_file: Path | None, ca_file: Path | None) -> Generator[Client]:
    """Yield a client; an AskError ends the command with one line."""
    from ..errors import AskError
    from .client import Client, Credentials
    from .top.names import clean

    try:
        yield Client(url, Credentials(token_file, ca_file))
    except AskError as error:
        fail(clean(str(error)))  # it may repeat what anybody answered at that address


def _show(found: Answer, show: Callable[[Console, Answer], None], *, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        sys.stdout.write(found.model_dump_json(by_alias=True, indent=2) + "\n")
    else:
        show(Console(markup=False), found)  # names and reasons are text, whatever brackets they have
