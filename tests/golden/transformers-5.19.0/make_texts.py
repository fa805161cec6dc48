"""Makes `texts.jsonl`: every chat of `chats.json` through every template, as transformers 5.19.0 renders it.

Use: `python make_texts.py`, where transformers 5.19.0 and jinja2 3.1.6 are installed. A line has `template`, `chat` and
`text`, which is null where the template refuses the chat.
"""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
PARTS = {"turns"}
"""Templates that loop over content, to which the engine hands content as parts."""


class Day(dt.datetime):
    """The one day on which these texts were written."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> "Day":
        return cls(2026, 11, 3, tzinfo=tz)


def as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the engine passes it to a template that expects parts."""
    if message["role"] == "tool":
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def main() -> None:
    """Render everything."""
    assert transformers.__version__ == "5.19.0", transformers.__version__
    chat_template_utils.datetime = Day
    bare = Tokenizer(models.WordLevel({"a": 0}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare)
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    lines = []
    for file in sorted((HERE / "templates").glob("*.jinja")):
        for chat in json.loads((HERE / "chats.json").read_text()):
            messages = [as_parts(m) if file.stem in PARTS else m for m in chat["messages"]]
            try:
                text = tokenizer.apply_chat_template(
                    messages,
                    chat_template=file.read_text(),
                    tools=chat.get("tools"),
                    documents=chat.get("documents"),
                    add_generation_prompt=chat.get("add_generation_prompt", True),
                    continue_final_message=chat.get("continue_final_message", False),
                    tokenize=False,
                    **chat.get("variables", {}),
                )
            except Exception:  # noqa: BLE001 - a template is a program
                text = None
            lines.append({"template": file.stem, "chat": chat["id"], "text": text})
    (HERE / "texts.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main()
