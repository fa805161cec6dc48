"""Small trained tokenizers of every family of models, and texts that are difficult for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """The quick brown fox jumps over the lazy dog. It's 12345 times faster than you'd think, isn't it?
def encode(text, *, size=16):\n    return [text[i:i + size] for i in range(0, len(text), size)]\n\n\nclass Cache:\n    pass\n
Größe naïve café coöperate Ελληνικά γλώσσα Русский язык и слова 你好 世界 こんにちは 世界 안녕 세상 مرحبا بالعالم שלום עולם
system user assistant You are a helpful assistant. <b>bold</b> http://example.org/a?b=c&d=e [INST] tool_call {"name": "x"}
one two  three   four    five\tsix\r\nseven eight nine ten e\u0301 n\u0303 \u00a0 \u2003 \ufb01ne \uff21\uff22 🙂 👩\u200d👧
"""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
QWEN2 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
QWEN35 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{ENDINGS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{ENDINGS}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace(f"{ENDINGS}?", "").replace("{1,3}", "")
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    # This pattern contains line feeds themselves, not escapes.
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^LINE_ENDS\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r""" ?[\p{P}\p{S}]+[LINE_ENDS]*|\s*[LINE_ENDS]+|\s+(?!\S)|\s+""".replace("LINE_ENDS", "\r\n"),
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")


def token(content: str, **flags: bool) -> AddedToken:
    """Make an added token; special and not normalized by default."""
    return AddedToken(content, **{"special": True, "normalized": False, **flags})


UNKNOWN = "<unk>"
CHATML = [token("<|endoftext|>"), token("<|im_start|>"), token("<|im_end|>")]


def trained(
    *,
    normalizer: Any = None,
    stages: Sequence[Any] = (),
    added: Sequence[AddedToken] = CHATML,
    frame: Any = None,
    model: Any = None,
    trainer: Any = None,
) -> Tokenizer:
    """Train a tokenizer with these parts on `TEXT`; a byte-level BPE by default."""
    bare = assembled(Tokenizer(model or models.BPE()), normalizer=normalizer, stages=stages, added=())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bare.train_from_iterator(
        TEXT.splitlines(keepends=True) * 3,
        trainer or trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False),
    )
    return assembled(bare, added=added, frame=frame)


def assembled(
    tokenizer: Tokenizer,
    *,
    normalizer: Any = None,
    stages: Sequence[Any] = (),
    added: Sequence[AddedToken] = CHATML,
    frame: Any = None,
) -> Tokenizer:
    """Add these parts to `tokenizer`."""
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if stages:
        tokenizer.pre_tokenizer = stages[0] if len(stages) == 1 else pre_tokenizers.Sequence(list(stages))
    for each in added:
        if each.special:
            tokenizer.add_special_tokens([each])  # pyright: ignore[reportUnknownMemberType]  # the library's stub
        else:
            tokenizer.add_tokens([each])  # pyright: ignore[reportUnknownMemberType]
    if frame is not None:
        tokenizer.post_processor = frame
    return tokenizer


def template(single: str) -> Any:
    """Make a post-processor that adds the tokens of `single`."""
    return processors.TemplateProcessing(
        single=single, special_tokens=[("<|im_start|>", 601), ("<|im_end|>", 602)]
    )


def byte_level(*patterns: str, **parts: Any) -> Tokenizer:
    """Make a byte-level tokenizer that splits by these patterns in turn."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    return trained(stages=[*splits, last], **parts)


def sentence_piece(*, added: Sequence[AddedToken] = CHATML, **parts: Any) -> Tokenizer:
    """Make a BPE over whole texts with a token for every byte; trained on words, as in SentencePiece."""
    reserved = [UNKNOWN, *(f"<0x{n:02X}>" for n in range(256))]
    words = trained(
        normalizer=normalizers.Replace(" ", "▁"),
        stages=[pre_tokenizers.Split(Regex("▁*[^▁\n]+|\n+|▁+"), "isolated")],
        trainer=trainers.BpeTrainer(vocab_size=800, special_tokens=reserved, show_progress=False),
        added=[],
    )
    learned = json.loads(words.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    model = models.BPE(learned["vocab"], merges, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)
    return assembled(Tokenizer(model), added=added, **parts)


def metaspace(scheme: str, *, split: bool, **parts: Any) -> Tokenizer:
    """Make a tokenizer as `transformers` converts it from SentencePiece."""
    return sentence_piece(stages=[pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)], **parts)


FAMILIES: Mapping[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_level_prefix": lambda: trained(stages=[pre_tokenizers.ByteLevel(add_prefix_space=True)]),
    "llama3": lambda: byte_level(LLAMA3, frame=template("<|im_start|> $A")),
    "qwen2": lambda: byte_level(QWEN2, normalizer=normalizers.NFC()),
    "qwen35": lambda: byte_level(QWEN35, normalizer=normalizers.NFC()),
    "o200k": lambda: byte_level(O200K),
    "tekken": lambda: byte_level(TEKKEN, frame=template("<|im_start|> $A <|im_end|>")),
    "gpt4": lambda: byte_level(GPT4),
    "deepseek": lambda: byte_level(*DEEPSEEK),
    "deepseek_coder": lambda: byte_level(*DEEPSEEK_CODER),
    "starcoder": lambda: trained(
        stages=[
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
    "falcon": lambda: trained(
        stages=[
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    ),
    "unknown_pattern": lambda: byte_level(r"\p{L}+[ ]?|[^\p{L}]+"),
    "nfc": lambda: byte_level(normalizer=normalizers.NFC()),
    "nfkc": lambda: byte_level(normalizer=normalizers.NFKC()),
    "nfkc_lowercase_strip": lambda: byte_level(
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    ),
    "metaspace_always": lambda: metaspace("always", split=False),
    "metaspace_never": lambda: metaspace("never", split=False),
    "metaspace_first": lambda: metaspace("first", split=False),
    "metaspace_always_split": lambda: metaspace("always", split=True),
    "metaspace_first_split": lambda: metaspace("first", split=True),
    "llama2": lambda: sentence_piece(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "gemma": lambda: sentence_piece(
        normalizer=normalizers.Replace(" ", "▁"), stages=[pre_tokenizers.Split(" ", "merged_with_previous")]
    ),
    "spaces_inside_tokens": lambda: trained(
        normalizer=normalizers.Replace(" ", "▁"),
        trainer=trainers.BpeTrainer(vocab_size=900, show_progress=False),
    ),
    "unigram": lambda: trained(
        model=models.Unigram(),
        stages=[pre_tokenizers.Metaspace()],
        trainer=trainers.UnigramTrainer(
            vocab_size=300, special_tokens=[UNKNOWN], unk_token=UNKNOWN, show_progress=False
        ),
    ),
    "word_piece": lambda: trained(
        model=models.WordPiece(unk_token=UNKNOWN),
        normalizer=normalizers.BertNormalizer(),
        stages=[pre_tokenizers.BertPreTokenizer()],
        trainer=trainers.WordPieceTrainer(vocab_size=400, special_tokens=[UNKNOWN], show_progress=False),
        frame=processors.BertProcessing(("<|im_end|>", 402), ("<|im_start|>", 401)),
    ),
    "word_level_without_unknown": lambda: trained(
        model=models.WordLevel(),
        stages=[pre_tokenizers.Whitespace()],
        trainer=trainers.WordLevelTrainer(show_progress=False),
    ),
    "normalized_tokens": lambda: byte_level(
        normalizer=normalizers.NFKC(),
        added=[*CHATML, token("<e\u0301>", normalized=True), token("tool", normalized=True, special=False)],
    ),
    "ordinary_tokens": lambda: byte_level(
        added=[
            *CHATML,
            token("<think>", special=False),
            token("  ", special=False),
            token("\n\n", special=False),
        ]
    ),
    "strips": lambda: byte_level(
        added=[
            *CHATML,
            token("<mask>", lstrip=True),
            token("<r>", rstrip=True),
            token("<lr>", lstrip=True, rstrip=True),
        ]
    ),
    "strips_behind_letters": lambda: byte_level(added=[*CHATML, token("END", rstrip=True)]),
    "single_words": lambda: byte_level(
        added=[*CHATML, token("fox", single_word=True), token("_y"), token(" y", single_word=True)]
    ),
    "overlapping": lambda: byte_level(
        added=[
            *CHATML,
            token("|>x", special=False),
            token("<|im_start|>user"),
            token("<|"),
            token("z<|im_", special=False),
        ]
    ),
    "blank_inside": lambda: byte_level(added=[*CHATML, token("New York", special=False), token("<a b>")]),
    "text_twice": lambda: byte_level(frame=template("<|im_start|> $A <|im_end|> $A")),
}
"""Name -> factory of the tokenizer."""

PIECES = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "|>", "<|", "start|>", "<", ">", "|", "<|im_start|>user\n",
    "<think>", "<mask>", "<r>", "<lr>", "<e\u0301>", "<\u00e9>", "tool", "END", "fox", "_y", "fox_y", "_", " y", "z", "x", "New York", "<a b>",
    " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\u200d", "\u0301", "\u0308", "\ufeff", "\x00", "▁", "/",
    "a", "b c", "The quick brown fox", "hello world", "It's", "don't I'LL", "'s", "é", "e\u0301", "ﬁ", "\uff21", "ŉ", "ĳ", "K", "1", "12345",
    "你好 世界", "。", "こんにちは", "안녕", "\u1100\u1161", "слово ", "Ω", "مرحبا ب", "🙂", "👩\u200d👧", "def f(x):\n    return x\n", "...", "]]\n",
)  # fmt: skip
"""Pieces of difficult texts."""

_TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join)
_BROKEN = st.tuples(_TEXTS, st.sampled_from(["\ud800", "\udfff", "\ud83d\ude00"]), _TEXTS).map("".join)
TEXTS = st.one_of(_TEXTS, _TEXTS, _TEXTS, _BROKEN)
"""Difficult texts; some contain surrogates, so they are not valid Unicode."""
