"""Estimates of the tokens of media in prompts whose token ids are not known. Names and defaults are the reference's."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from .section import Section

Count = Annotated[int, Meta(ge=1)]
Limit = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]


class Resolution(Section, frozen=True):
    """Size of an image or a frame."""

    width: Count = 640
    """Pixels."""
    height: Count = 360
    """Pixels."""


class PixelRule(Section, frozen=True):
    """Tokens by the number of pixels."""

    factor: Count = 1024
    """Pixels per token."""


class StaticImageRule(Section, frozen=True):
    """A fixed number of tokens per image."""

    static_token: Count = 1
    """Tokens."""


class ImageEstimate(Section, frozen=True):
    """Tokens of an image."""

    mode: Literal["dynamic", "static"] = "dynamic"
    """dynamic: by its pixels; static: a fixed number."""
    default_resolution: Resolution = Resolution()
    """Size of images whose size the request does not contain."""
    dynamic: PixelRule = PixelRule()
    """Rule of mode dynamic."""
    static: StaticImageRule = StaticImageRule()
    """Rule of mode static."""


class StaticFrameRule(Section, frozen=True):
    """A fixed number of tokens per frame."""

    num_tokens_per_frame: Count = 1
    """Tokens."""


class FrameTokens(Section, frozen=True):
    """Tokens of one frame of a video."""

    mode: Literal["dynamic", "static"] = "dynamic"
    """dynamic: by its pixels; static: a fixed number."""
    dynamic: PixelRule = PixelRule()
    """Rule of mode dynamic."""
    static: StaticFrameRule = StaticFrameRule()
    """Rule of mode static."""


class SampledFrames(Section, frozen=True):
    """Frames at a fixed rate."""

    sample_fps: Rate = field(default=2.0, name="sampleFPS")
    """Frames per second."""
    temporal_patch_size: Count = 1
    """Frames that share their tokens."""


class StridedFrames(Section, frozen=True):
    """Every n-th frame of the source."""

    default_source_fps: Rate = field(default=24.0, name="defaultSourceFPS")
    """Frames per second of the source."""
    frame_stride: Count = 1
    """Frames of the source per frame taken."""


class VideoFrames(Section, frozen=True):
    """Number of frames of a video."""

    mode: Literal["sampled", "strided"] = "sampled"
    """sampled: at a fixed rate; strided: every n-th."""
    min_frames: Limit = 0
    """Least frames."""
    max_frames: Limit = 0
    """Most frames; 0 for no limit."""
    sampled: SampledFrames = SampledFrames()
    """Rule of mode sampled."""
    strided: StridedFrames = StridedFrames()
    """Rule of mode strided."""


class VideoEstimate(Section, frozen=True):
    """Tokens of a video: its frames times the tokens of a frame."""

    tokens_per_frame: FrameTokens = FrameTokens()
    """Tokens of a frame."""
    frames: VideoFrames = VideoFrames()
    """Number of frames."""
    default_resolution: Resolution = Resolution()
    """Size of a frame."""
    default_duration: Rate = 10.0
    """Length in seconds."""
    max_video_tokens: Limit = 0
    """Most tokens; 0 for no limit."""


class AudioRule(Section, frozen=True):
    """Tokens by length."""

    tokens_per_second: Rate = 12.5
    """Tokens per second."""
    overhead_tokens: Limit = 14
    """Tokens beside those of the sound."""
    bytes_per_second: Count = 16_000
    """Bytes per second of sound that the request contains."""


class StaticAudioRule(Section, frozen=True):
    """A fixed number of tokens."""

    num_tokens: Count = 1
    """Tokens."""


class AudioEstimate(Section, frozen=True):
    """Tokens of audio."""

    mode: Literal["dynamic", "static"] = "dynamic"
    """dynamic: by its length; static: a fixed number."""
    dynamic: AudioRule = AudioRule()
    """Rule of mode dynamic."""
    static: StaticAudioRule = StaticAudioRule()
    """Rule of mode static."""
    default_duration: Rate = 10.0
    """Length in seconds of audio that the request does not contain."""
    max_audio_tokens: Limit = 0
    """Most tokens; 0 for no limit."""


class EstimateConfig(Section, frozen=True):
    """Tokens of media in prompts whose token ids are not known; a text counts one token per four bytes of UTF-8."""

    image: ImageEstimate = ImageEstimate()
    """Images."""
    video: VideoEstimate = VideoEstimate()
    """Videos."""
    audio: AudioEstimate = AudioEstimate()
    """Audio."""
