"""Estimated tokens of images, videos and audio."""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
import pytest

from kvatlas.configs.estimate import EstimateConfig
from kvatlas.tokenization.encoding.media_tokens import MediaTokens, image_size

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 1024, 512) + b"\x08\x02\x00\x00\x00"
GIF = b"GIF89a" + struct.pack("<HH", 320, 200) + bytes(10)
JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08" + struct.pack(">HH", 480, 640) + bytes(12)


def data_url(image: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def estimated(kind: str, part: dict[str, Any], **config: Any) -> int:
    return MediaTokens(msgspec.convert(config, EstimateConfig)).of(kind, part)


@pytest.mark.parametrize(
    ("url", "size"),
    [
        pytest.param(data_url(PNG), (1024, 512), id="png"),
        pytest.param(data_url(GIF, "gif"), (320, 200), id="gif"),
        pytest.param(data_url(JPEG, "jpeg"), (640, 480), id="jpeg_after_another_segment"),
        pytest.param(data_url(PNG[:12]), None, id="cut"),
        pytest.param(data_url(b"\xff\xd8\xff"), None, id="cut_jpeg"),
        pytest.param(data_url(b"text"), None, id="no_image"),
        pytest.param("data:image/png;base64,=?", None, id="no_base64"),
        pytest.param("data:image/png;base64,日本", None, id="no_ascii"),
        pytest.param("http://x/1.png", None, id="elsewhere"),
    ],
)
def test_size_of_an_image_is_read_from_its_first_bytes(url: str, size: tuple[int, int] | None) -> None:
    assert image_size(url) == size


@pytest.mark.parametrize(
    ("kind", "part", "config", "n_tokens"),
    [
        pytest.param("image", {"image_url": {"url": "http://x/1.png"}}, {}, 225, id="image_of_unknown_size"),
        pytest.param("image", {"image_url": {"url": data_url(PNG)}}, {}, 512, id="image_by_its_pixels"),
        pytest.param("image", {"image_url": data_url(PNG)}, {}, 512, id="address_without_object"),
        pytest.param("image", {"image_url": {"url": data_url(GIF)}}, {"image": {"dynamic": {"factor": 10**6}}}, 1, id="least"),
        pytest.param("image", {}, {"image": {"mode": "static", "static": {"staticToken": 7}}}, 7, id="static_image"),
        pytest.param("image", {}, {"image": {"defaultResolution": {"width": 64, "height": 64}}}, 4, id="resolution"),
        pytest.param("video", {}, {}, 20 * 225, id="video_of_ten_seconds"),
        pytest.param("video", {}, {"video": {"frames": {"maxFrames": 8, "sampled": {"temporalPatchSize": 2}}}}, 4 * 225, id="frame_pairs"),
        pytest.param("video", {}, {"video": {"frames": {"mode": "strided", "strided": {"frameStride": 24}}, "tokensPerFrame": {"mode": "static", "static": {"numTokensPerFrame": 70}}}}, 700, id="strided"),
        pytest.param("video", {}, {"video": {"maxVideoTokens": 100}}, 100, id="video_cut"),
        pytest.param("video", {}, {"video": {"frames": {"minFrames": 30}}}, 30 * 225, id="least_frames"),
        pytest.param("audio", {"audio_url": {"url": "http://x"}}, {}, 14 + 125, id="audio_of_ten_seconds"),
        pytest.param("audio", {"input_audio": {"data": "A" * 64_000}}, {}, 14 + 37, id="audio_by_its_bytes"),
        pytest.param("audio", {}, {"audio": {"mode": "static", "static": {"numTokens": 3}}}, 3, id="static_audio"),
        pytest.param("audio", {}, {"audio": {"maxAudioTokens": 20}}, 20, id="audio_cut"),
        pytest.param("prompt_embeds", {}, {}, 1, id="no_rule"),
    ],
)  # fmt: skip
def test_tokens_of_media_are_those_of_the_references_rules(
    kind: str, part: dict[str, Any], config: dict[str, Any], n_tokens: int
) -> None:
    assert estimated(kind, part, **config) == n_tokens
