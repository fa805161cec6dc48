"""Test texts that show whether a tokenizer gives the same ids for a whole text and for its segments."""

from __future__ import annotations

from tokenizers import Tokenizer

PATTERNS = (
    "hello world",
    # empty text, blanks, and special tokens with and without blanks and line feeds around them
    "", " ", "\n", "{a}", "{b}", "{a}{b}", "{a}{a}", "{a} {b}", "{a}\n{b}\n", " {a}", "{a} ", "  {a}  {b}  ", "\n\n{a}\n\n",
    # words beside special tokens, with and without a blank
    "hello{a}world", "hello {a} world", "{a}hello world{b}", "{a} hello", "{a}Hello", "x{a}", "{a}x{b}y{a}z",
    # a conversation
    "{a}system\nYou are kind.{b}\n{a}user\nWhat's 12345 + 67?{b}\n{a}assistant\n",
    # parts of special tokens, and special tokens inside words and inside each other
    "{a_cut}", "{a_cut}{a}", "{a}{a_rest}", "{a_cut}{b}{a_rest}", "{a_cut} {a_rest}", "{a_upper}", "un{a}believable{b}s",
    # text that normalizers and pre-tokenizers treat differently
    "  leading and trailing  ", "tabs\tand\t\ttabs", "line\nline\n\nline\r\nline\r\rline", "a  b   c    d", "don't I'LL we've",
    "{a}e\u0301 \u0301 n\u0303{b}\u0301 a\u0308", "\u00a0no\u00a0break\u00a0{a}\u00a0", "\u2003wide\u3000blanks\u200b{a}\u200b",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467 flag \U0001f1e9\U0001f1ea{a}\U0001f44d\U0001f3fd", "\ufb01ne \u2460 \uff21\uff22 \u1e9b\u0323",
    "\u4f60\u597d \u4e16\u754c\u3002{a}\u3053\u3093\u306b\u3061\u306f \u4e16\u754c\n\uc548\ub155 \uc138\uacc4", "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 {a}\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "def f(x):\n    return x + 1  # {a}\n\n\nclass C: pass\n", "http://a.b/c?d=e&f=%20g#h {b} x_y-z.w", "$1,234.56 (7%) [8] {{9}} <b>10</b>",
    "ABC Def gHI jKlM I'm it's HTML's{a}'s 's 't", "\u2581under\u2581score \u2581 {a}\u2581", "\x00\x01\x7f \ufeff{a}\ufffd", "q" * 70 + " " + "w" * 70,
    "The quick brown fox jumps over the lazy dog. " * 3, "{a}" + "one two three four five six seven eight nine ten\n" * 3 + "{b}",
)  # fmt: skip
"""`{a}` and `{b}` stand for two added tokens; `{a_cut}` is `{a}` without its last character, and `{a_rest}` that character."""


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Return the texts with special tokens of the tokenizer, and with its other added tokens if it has any.

    The first text is plain words. Cost: 10 ms to encode all of them.
    """
    added = [token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    kinds = ([token.content for token in added if token.special is special] for special in (True, False))
    pairs = [(kind[0], kind[-1]) for kind in kinds if kind] or [("<s>", "</s>")]
    return [
        pattern.format(a=a, b=b, a_cut=a[:-1], a_rest=a[-1:], a_upper=a.upper())
        for a, b in pairs
        for pattern in PATTERNS
    ]
