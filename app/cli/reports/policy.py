"""The report of `kvatlas policy`."""

from __future__ import annotations

from rich.console import Console

from ....api.rest.models import ChangedOut
from ....api.rest.policy_models import PolicyOut
from ....configs.section import PolicyName
from ..client import Client


def change_policy(client: Client, policy: PolicyName) -> None:
    """Change the policy of a running process.

    Raises:
        AskError: as of `Client.put`.
    """
    client.put("/v1/policy", {"policy": policy}, ChangedOut)


def fetch_policy(client: Client) -> PolicyOut:
    """Return the policy in force.

    Raises:
        AskError: as of `Client.require`.
    """
    return client.require("/v1/policy", PolicyOut)


def print_policy(console: Console, found: PolicyOut) -> None:
    """Print the policy and the number of its configuration."""
    console.print(f"{found.policy} (configuration {found.generation})", highlight=False, markup=False)
