"""docs/rest.md: every command works as the page shows, in order, against a real `kvatlas serve`."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.publishing import stored
from support.recording import player
from support.serve import Served, serving
from support.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"
_EXAMPLE = re.compile(
    r"^```bash\n(?P<command>.*?)^```\n```json\n(?P<answer>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Example:
    """One command of the page, and the response printed below it."""

    method: str
    path: str
    body: Any
    answer: Any


def read_examples(text: str) -> list[Example]:
    return [
        Example(*parse_curl(found["command"]), json.loads(found["answer"]))
        for found in _EXAMPLE.finditer(text)
    ]


def parse_curl(command: str) -> tuple[str, str, Any]:
    """Return method, path and JSON body of a command; fail on any other option."""
    method, path, body = "GET", "", None
    words = iter(shlex.split(command))
    assert next(words) == "curl"
    for word in words:
        match word:
            case "-X":
                method = next(words)
            case "-H":
                assert next(words) == "Content-Type: application/json"
            case "-d":
                body = json.loads(next(words))
            case _:
                path = word.removeprefix("http://localhost:8080")
                assert path.startswith("/")
    return method, path, body


async def test_every_example_works_as_the_page_shows(tmp_path: Path) -> None:
    async with player() as engine, serving({}, tmp_path) as served:
        await engine.publish(stored(0, range(32)))
        text = PAGE.read_text()
        text = text.replace("tcp://10.0.0.7:5557", engine.events).replace(
            "tcp://10.0.0.7:5558", engine.replay
        )
        examples = read_examples(text)
        assert len(examples) == text.count("```bash") == 5
        for example in examples:
            assert await answer_of(served, example) == example.answer


async def answer_of(served: Served, example: Example) -> Any:
    """Return the server's response; reads are repeated until the events they need have arrived."""
    url = f"http://127.0.0.1:{served.ports['rest']}{example.path}"

    async def ask() -> Any:
        async with served.session.request(example.method, url, json=example.body) as answer:
            return await answer.json()

    async def is_right() -> bool:
        return bool(await ask() == example.answer)

    if example.path not in ("/register", "/unregister"):
        await until(is_right, what=f"the response to {example.path}")
    return await ask()


async def test_page_and_description_name_the_same_routes_and_fields(tmp_path: Path) -> None:
    async with serving({}, tmp_path) as served:
        openapi = await served.get("/openapi.json")
    page = PAGE.read_text()
    standard = {path for path, operations in openapi["paths"].items() if "standard" in str(operations)}
    assert standard == {example.path for example in read_examples(page)}
    for title, name in (("Register", "RegisterRequest"), ("Query", "QueryRequest")):
        section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
        cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        documented = {field for cell in cells for field in re.findall(r"`(\w+)`", cell)}
        aliases = {"model", "model_name", "modelname", "additionalsalt", "additional_salt"}
        assert documented | aliases == set(openapi["components"]["schemas"][name]["properties"]) | aliases
