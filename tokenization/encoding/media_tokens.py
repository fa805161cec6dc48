"""Estimated numbers of tokens of images, videos and audio, from what a request says of them."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Mapping
from typing import Any, cast

from ...configs.estimate import AudioEstimate, EstimateConfig, ImageEstimate, Resolution, VideoEstimate

_HEAD_CHARS = 64 * 1024
"""Base64 characters of an image that are decoded; its size stands at the beginning."""

_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""JPEG markers of segments with the size of the image."""


class MediaTokens:
    """Estimates the tokens of media items.

    Args:
        config: rules; None for the defaults.
    """

    def __init__(self, config: EstimateConfig | None = None) -> None:
        self._config = config or EstimateConfig()

    def of(self, kind: str, part: Mapping[str, Any]) -> int:
        """Return the tokens of a content part, at least 1.

        Args:
            kind: `image`, `video`, `audio` or another word for which there is no rule.
            part: as the client sent it. Only images in the request itself are looked into, at their first bytes.
        """
        match kind:
            case "image":
                n_tokens = _of_image(self._config.image, part)
            case "video":
                n_tokens = _of_video(self._config.video)
            case "audio":
                n_tokens = _of_audio(self._config.audio, part)
            case _:
                n_tokens = 1
        return max(1, n_tokens)


def _of_image(rule: ImageEstimate, part: Mapping[str, Any]) -> int:
    if rule.mode == "static":
        return rule.static.static_token
    size = image_size(_url(part, "image_url")) or _pixels(rule.default_resolution)
    return size[0] * size[1] // rule.dynamic.factor


def _of_video(rule: VideoEstimate) -> int:
    frames = rule.frames
    if frames.mode == "strided":
        n_frames = (
            int(rule.default_duration * frames.strided.default_source_fps) // frames.strided.frame_stride
        )
    else:
        n_frames = int(rule.default_duration * frames.sampled.sample_fps)
    n_frames = max(n_frames, frames.min_frames)
    if frames.max_frames:
        n_frames = min(n_frames, frames.max_frames)
    if frames.mode == "sampled":
        n_frames //= frames.sampled.temporal_patch_size
    per_frame = rule.tokens_per_frame
    if per_frame.mode == "static":
        n_tokens = n_frames * per_frame.static.num_tokens_per_frame
    else:
        width, height = _pixels(rule.default_resolution)
        n_tokens = n_frames * max(1, width * height // per_frame.dynamic.factor)
    return min(n_tokens, rule.max_video_tokens or n_tokens)


def _of_audio(rule: AudioEstimate, part: Mapping[str, Any]) -> int:
    if rule.mode == "static":
        return rule.static.num_tokens
    given = part.get("input_audio")
    data = cast("Mapping[str, object]", given).get("data") if isinstance(given, Mapping) else None
    seconds = rule.default_duration
    if isinstance(data, str) and data:
        seconds = len(data) * 3 / 4 / rule.dynamic.bytes_per_second
    n_tokens = rule.dynamic.overhead_tokens + int(rule.dynamic.tokens_per_second * seconds)
    return min(n_tokens, rule.max_audio_tokens or n_tokens)


def _pixels(resolution: Resolution) -> tuple[int, int]:
    return resolution.width, resolution.height


def _url(part: Mapping[str, Any], field: str) -> str:
    given = part.get(field)
    url = cast("Mapping[str, object]", given).get("url") if isinstance(given, Mapping) else given
    return url if isinstance(url, str) else ""


def image_size(url: str) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF or JPEG in a `data:` address, None if there is none or it cannot be read."""
    head, found, data = url[:200].partition("base64,")
    if not found or not head.startswith("data:image/"):
        return None
    start = len(head) + len(found)
    data = url[start : start + _HEAD_CHARS]
    try:
        image = binascii.a2b_base64(data[: len(data) // 4 * 4].encode())
    except (binascii.Error, UnicodeEncodeError):
        return None
    size: tuple[int, int] | None = None
    if image.startswith(b"\x89PNG\r\n\x1a\n") and len(image) >= 24:
        size = struct.unpack_from(">II", image, 16)
    elif image.startswith(b"GIF8") and len(image) >= 10:
        size = struct.unpack_from("<HH", image, 6)
    elif image.startswith(b"\xff\xd8"):
        size = _jpeg_size(image)
    return size if size is not None and min(size) > 0 else None


def _jpeg_size(image: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 <= len(image) and image[place] == 0xFF:
        if image[place + 1] in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", image, place + 5)
            return width, height
        place += 2 + int.from_bytes(image[place + 2 : place + 4], "big")
    return None
