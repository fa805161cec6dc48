"""Model folders for tests of tokenization, made from the recorded tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm-0.32.0"
TINY = GOLDEN / "tiny-model"

BOS = "<|endoftext|>"
ADDS_BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {BOS: {"id": BOS, "ids": [0], "tokens": [BOS]}},
}


def read_json(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def write_model(folder: Path, *, tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
    """Create a model folder without template file, with these changes to the tiny model's JSON files."""
    folder.mkdir()
    shutil.copy(TINY / "config.json", folder)
    for name, changes in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps({**read_json(TINY / name), **changes}))
    return folder


VISION_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ image_token }}\n"
    "{% elif part['type'] == 'tool_reference' %}@{{ part['name'] }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Expects content as parts."""

STRICT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('system first') }}{% endif %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ reasoning_effort }}{% endif %}"
)
"""Accepts system messages only at the front, and enables thinking by default."""

LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": 428,
    "text_config": {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 64,
        "image_size": 28,
        "patch_size": 14,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "projection_dim": 64,
        "vocab_size": 512,
    },
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
"""A model with four tokens per image of 28 x 28 pixels."""


def write_vision_model(folder: Path, template: str) -> Path:
    """Create a model with an image token, processor and template."""
    added = read_json(TINY / "tokenizer.json")["added_tokens"]
    image = {**added[0], "id": 428, "content": "<image>"}
    config = {"chat_template": template, "extra_special_tokens": {"image_token": "<image>"}}
    write_model(folder, tokenizer={"added_tokens": [*added, image]}, config=config)
    size = {"height": 28, "width": 28}
    files = {
        "config.json": LLAVA,
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
        },
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 28},
            "crop_size": size,
            "processor_class": "LlavaProcessor",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def make_models(folder: Path) -> dict[str, Path]:
    """Create the folders of several models.

    - tiny: as recorded
    - bos: tokenizer and template both add a BOS token; `bos_token` is an object
    - named: two templates in `tokenizer_config.json`, one of them for requests with tools
    - vision, vision-strings: accept images; their templates expect content as parts and as a string, respectively
    - strict: with `STRICT_TEMPLATE`
    - processor: as vision, but the processor has its own template
    """
    template = read_json(TINY / "tokenizer_config.json")["chat_template"]
    bos_token = {"__type": "AddedToken", "content": BOS, "special": True, "normalized": False}
    bos_token |= {"lstrip": False, "rstrip": False, "single_word": False}
    named = [
        {"name": "default", "template": template},
        {"name": "tool_use", "template": "{% if tools %}tools: {{ tools | tojson }}{% endif %}\n" + template},
    ]
    models = {
        "tiny": TINY,
        "bos": write_model(
            folder / "bos",
            tokenizer={"post_processor": ADDS_BOS},
            config={
                "bos_token": bos_token,
                "add_bos_token": False,
                "chat_template": "{{ bos_token }}" + template,
            },
        ),
        "named": write_model(folder / "named", tokenizer={}, config={"chat_template": named}),
        "strict": write_model(folder / "strict", tokenizer={}, config={"chat_template": STRICT_TEMPLATE}),
        "vision": write_vision_model(folder / "vision", VISION_TEMPLATE),
        "vision-strings": write_vision_model(folder / "vision-strings", template),
        "processor": write_vision_model(folder / "processor", template),
    }
    processor_template = {"chat_template": "processor\n" + VISION_TEMPLATE}
    (models["processor"] / "chat_template.json").write_text(json.dumps(processor_template))
    return models
