"""The served model's tokenizer, loaded from local files."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ..chats.chat import ChatOptions, ChatRenderer
from ..chats.chat_files import load_chat
from ..errors import TokenizerLoadError
from .converted import SOURCES, convert
from .segment_cache import CACHE_BYTES
from .segment_encoder import EncodingLimits, SegmentEncoder, encode_texts

TOKENIZER_FILE = "tokenizer.json"
MAX_FILES_NAMED = 10


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """The tokenizer and the chat templates of one model.

    Attributes:
        encoder: the model's `tokenizer.json`, with truncation and padding off.
        chat: renderer with the model's chat templates; None if it has none.
        segments: encoder with a cache; it returns the same ids as `encode`.
    """

    encoder: Tokenizer
    chat: ChatRenderer | None
    segments: SegmentEncoder

    def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """Encode the whole text to token ids, `array('I')`, without the cache.

        Raises:
            EncodeError: the tokenizer rejects this text.
        Cost: 0.7 µs per token with the small vocabulary of the tests, about twice that with one of 32,000.
        """
        return array("I", encode_texts(self.encoder, [text], adds=add_special_tokens)[0])


def load_tokenizer(
    path: str | Path,
    *,
    chat: ChatOptions | None = None,
    cache_bytes: int = CACHE_BYTES,
    limits: EncodingLimits | None = None,
) -> ModelTokenizer:
    """Load the tokenizer at `path`: a model folder, or a `tokenizer.json`, which then has no chat template.

    In a folder it reads `tokenizer.json` and the files that `chat_files.load_chat` lists. If there is no `tokenizer.json`,
    it converts one of `converted.SOURCES`, which needs `transformers`.

    Args:
        path: local folder or file.
        chat: the engine's options for chat templates; None for its defaults.
        cache_bytes: memory limit of the cache of encoded segments.
        limits: of the texts; None for the defaults.

    Raises:
        TokenizerLoadError: a file is missing or broken; the message says which and what to do.
    Cost: 5 µs per vocabulary entry, mostly with the GIL held, and 0.1 s once in a process.
    """
    path = Path(path)

    def made(encoder: Tokenizer, chat: ChatRenderer | None) -> ModelTokenizer:
        encoder.no_truncation()
        encoder.no_padding()
        return ModelTokenizer(encoder, chat, SegmentEncoder(encoder, cache_bytes=cache_bytes, limits=limits))

    if path.is_file():
        return made(_load_encoder(path), None)
    if not path.is_dir():
        raise TokenizerLoadError(
            f"tokenizer path {path} does not exist; set model.tokenizer to a local folder with {TOKENIZER_FILE}, "
            f"or to that file"
        )
    if (path / TOKENIZER_FILE).is_file():
        return made(_load_encoder(path / TOKENIZER_FILE), load_chat(path, options=chat))
    if not any((path / name).is_file() for name in SOURCES):
        raise TokenizerLoadError(
            f"tokenizer folder {path} has no {TOKENIZER_FILE} (it has {_listing(path)}); copy it there from the "
            f"model's repository, or create it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    encoder, special_tokens = convert(path)
    return made(encoder, load_chat(path, options=chat, special_tokens=special_tokens))


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "no files"
    more = ", ..." if len(names) > MAX_FILES_NAMED else ""
    return ", ".join(names[:MAX_FILES_NAMED]) + more


def _load_encoder(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # The library raises its base class for every kind of broken file, and its panics do not derive from `Exception`.
        raise TokenizerLoadError(
            f"{file} is not a readable tokenizer ({error}); copy it again from the model's repository"
        ) from error
