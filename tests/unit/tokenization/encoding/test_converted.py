"""Trained tokenizers without `tokenizer.json`, compared with the libraries of their file formats."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.encoding.tokenizer import load_tokenizer
from kvatlas.tokenization.errors import TokenizerLoadError
from kvatlas.tokenization.model import ChatPrompt
from support.tokenizer_families import LLAMA3, TEXT, byte_level

BEGIN = "<|begin|>"
TEXTS = ("hello world", " leading and  double ", "It's 12345!\n\n", "你好 世界 🙂", "e\u0301 \u00a0", TEXT)


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a Llama-like folder with a SentencePiece model."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "text").write_text(TEXT * 3)
    trainer: Any = import_module("sentencepiece").SentencePieceTrainer
    trainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), vocab_size=500, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def ranks(tokenizer: Tokenizer) -> dict[bytes, int]:
    """Return the vocabulary of a byte-level tokenizer in tiktoken's form."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    return {bytes(byte_of[char] for char in token): rank for token, rank in tokenizer.get_vocab().items()}


@pytest.fixture(scope="module")
def vocabulary() -> dict[bytes, int]:
    return ranks(byte_level(LLAMA3, added=[]))


@pytest.fixture(scope="module")
def tik_token(vocabulary: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a tiktoken vocabulary."""
    folder = tmp_path_factory.mktemp("tiktoken")
    lines = (base64.b64encode(token).decode() + f" {rank}\n" for token, rank in vocabulary.items())
    (folder / "tiktoken.model").write_text("".join(lines))
    begin = {"content": BEGIN, "special": True, "normalized": False}
    begin |= {"lstrip": False, "rstrip": False, "single_word": False}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "added_tokens_decoder": {str(len(vocabulary)): begin},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_the_engine_has_from_transformers(
    sentence_piece: Path, tik_token: Path, text: str
) -> None:
    for folder in (sentence_piece, tik_token):
        theirs: Any = import_module("transformers").AutoTokenizer.from_pretrained(str(folder))
        ours = load_tokenizer(folder)
        for adds in (True, False):
            wanted = array("I", theirs(text, add_special_tokens=adds).input_ids)
            assert ours.segments.tokens(text, add_special_tokens=adds) == wanted


@pytest.mark.slow
# transformers differs from SentencePiece for texts that begin with a blank.
@pytest.mark.parametrize("text", [text for text in TEXTS if not text.startswith(" ")])
def test_ids_are_those_of_sentencepiece_when_the_folder_has_its_model(
    sentence_piece: Path, text: str
) -> None:
    processor: Any = import_module("sentencepiece").SentencePieceProcessor(
        model_file=str(sentence_piece / "tokenizer.model")
    )
    wanted = array("I", [processor.bos_id(), *processor.encode(text)])
    tokenizer = load_tokenizer(sentence_piece)
    assert tokenizer.encode(text, add_special_tokens=True) == wanted
    assert tokenizer.segments.tokens(text, add_special_tokens=True) == wanted
    assert tokenizer.segments.is_segmented


@pytest.mark.slow
@pytest.mark.parametrize("text", [*TEXTS, f"{BEGIN}hello{BEGIN} {BEGIN}"])
def test_ids_are_those_of_tiktoken_when_the_folder_has_its_vocabulary(
    tik_token: Path, vocabulary: dict[bytes, int], text: str
) -> None:
    encoding: Any = import_module("tiktoken").Encoding(
        "test", pat_str=LLAMA3, mergeable_ranks=vocabulary, special_tokens={BEGIN: len(vocabulary)}
    )
    wanted = array("I", encoding.encode(text, allowed_special="all"))
    tokenizer = load_tokenizer(tik_token)
    assert tokenizer.encode(text, add_special_tokens=False) == wanted
    assert tokenizer.segments.tokens(text, add_special_tokens=False) == wanted
    assert tokenizer.segments.is_segmented


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LlamaTokenizer", "GemmaTokenizer"])
def test_plain_text_has_segments_when_the_tokenizer_is_converted_from_sentencepiece(
    sentence_piece: Path, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "tokenizer.model").write_bytes((sentence_piece / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    draft = load_tokenizer(tmp_path).segments.draft(TEXT * 10, add_special_tokens=True)
    assert len(draft.segments) >= 3


@pytest.mark.slow
def test_template_knows_the_special_tokens_of_a_converted_tokenizer(
    sentence_piece: Path, tik_token: Path, tmp_path: Path
) -> None:
    chat = ChatPrompt(messages=(Message(role="user", content="hi"),))
    for folder, wanted in ((tik_token, "<|begin|>hi"), (sentence_piece, "<s>hi")):
        copy = tmp_path / folder.name
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        (copy / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
        renderer = load_tokenizer(copy).chat
        assert renderer is not None
        assert renderer.render(chat).text == wanted


@pytest.mark.slow
def test_tokenizer_load_error_is_raised_when_the_files_make_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\xff not a model")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(
        TokenizerLoadError, match=f"transformers cannot convert the tokenizer in {tmp_path}: "
    ):
        load_tokenizer(tmp_path)


@pytest.mark.slow
def test_tokenizer_load_error_is_raised_when_the_tokenizer_runs_in_python(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").touch()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    with pytest.raises(TokenizerLoadError, match="runs in Python \\(ByT5Tokenizer\\); not supported"):
        load_tokenizer(tmp_path)


@pytest.mark.slow
def test_code_of_a_model_is_not_run_when_its_tokenizer_needs_it(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerLoadError):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_tokenizer_load_error_names_the_extra_when_it_is_not_installed(
    tik_token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(
        TokenizerLoadError,
        match=r"has no tokenizer\.json.* needs tiktoken: pip install 'kvatlas\[transformers\]'",
    ):
        load_tokenizer(tik_token)
