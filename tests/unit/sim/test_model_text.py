from __future__ import annotations

import json
from array import array
from pathlib import Path
from random import Random

import pytest

from kvatlas.configs.schema import ModelConfig
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.errors import RequestRefusedError
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.words import N_WORDS, prose, vocabulary
from kvatlas.tokenization.configured import own_renderer

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return folder


@pytest.fixture
def text(folder: Path) -> TokenizerText:
    return TokenizerText(folder)


def chat_body(*messages: tuple[str, str]) -> bytes:
    entries = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"model": MODEL_NAME, "messages": entries}).encode()


def test_model_folder_leaves_no_doubt_about_its_chat_template(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert own_renderer(ModelConfig(tokenizer=str(folder))) is None
    assert not caplog.records


def test_model_folder_is_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    write_demo_model(tmp_path)

    for file in folder.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_words_are_distinct_and_nearly_all_one_token(text: TokenizerText) -> None:
    words = vocabulary()
    assert len(set(words)) == len(words) == N_WORDS

    n_words = 500
    body = json.dumps({"model": MODEL_NAME, "prompt": prose(Random(3), n_words)}).encode()
    assert n_words < len(text.tokenize("/v1/completions", body)) < 1.3 * n_words


def test_prose_follows_its_seed_and_length() -> None:
    assert prose(Random(1), 40) == prose(Random(1), 40) != prose(Random(2), 40)
    assert len(prose(Random(1), 40).split()) == 40


def test_reply_sent_back_gives_its_own_tokens(text: TokenizerText) -> None:
    """Because of this, the next turn of a conversation reuses generated blocks."""
    first = [("system", prose(Random(1), 80)), ("user", prose(Random(2), 10))]
    prompt = text.tokenize(CHAT, chat_body(*first))
    reply = text.reply(prompt, 50)

    said = "".join(text.pieces(reply))
    next_prompt = text.tokenize(CHAT, chat_body(*first, ("assistant", said), ("user", "Mora?")))

    assert next_prompt[: len(prompt) + 49] == prompt + reply[:49]


def test_reply_depends_on_the_prompt_alone(text: TokenizerText) -> None:
    one, other = array("I", [5, 6]), array("I", [6, 5])

    assert text.reply(one, 20) == text.reply(one, 20) != text.reply(other, 20)
    assert len(text.reply(one, 1)) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(CHAT, b'{"model": "m", "messages": []}', id="no_messages"),
        pytest.param(CHAT, b'{"model": "m", "messages": [{"role": 1}]}', id="malformed_message"),
        pytest.param("/v1/completions", b'{"model": "m"}', id="no_prompt"),
        pytest.param("/v1/nonsense", b'{"model": "m"}', id="unknown_path"),
    ],
)
def test_body_without_a_prompt_is_refused(text: TokenizerText, path: str, body: bytes) -> None:
    with pytest.raises(RequestRefusedError):
        text.tokenize(path, body)


def test_chat_is_refused_when_the_model_has_no_template(folder: Path) -> None:
    text = TokenizerText(folder / "tokenizer.json")

    with pytest.raises(RequestRefusedError, match="no chat template"):
        text.tokenize(CHAT, chat_body(("user", "Mora?")))
