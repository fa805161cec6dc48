"""Which of several models a request is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kvatlas.configs.schema import KVAtlasConfig, ModelConfig
from kvatlas.routing.models import ServedModels
from kvatlas.tokenization.model import NoPrefixReason, Prompt
from kvatlas.tokenization.requests.request import parse_body
from kvatlas.tokenization.requests.vllm_grpc import vllm_request
from support.models import TINY, make_models
from support.protobuf import frame, tokenized

RED, BLUE = {"pool": "red"}, {"pool": "blue"}


def served(*models: ModelConfig) -> ServedModels:
    config = KVAtlasConfig(api_version="kvatlas/v1", models=models)
    return ServedModels(config, endpoint_urls=lambda _labels: [], on_outcome=lambda _outcome, _seconds: None)


def two_models(folder: Path) -> ServedModels:
    """`red` with the recorded tokenizer, `blue` with one that puts a BOS token in front."""
    return served(
        ModelConfig(names=("red", "red-alias"), tokenizer=str(TINY), endpoint_labels=RED),
        ModelConfig(
            names=("blue",),
            adapters=("blue-sql",),
            tokenizer=str(make_models(folder)["bos"]),
            endpoint_labels=BLUE,
        ),
    )


async def prompt_of(models: ServedModels, name: str) -> Prompt:
    body = f'{{"model": "{name}", "prompt": "hello"}}'.encode()
    return await models.tokenize(parse_body("/v1/completions", body))


@pytest.mark.parametrize(
    ("name", "like", "lora", "labels"),
    [
        pytest.param("red", "red", None, RED, id="name"),
        pytest.param("red-alias", "red", None, RED, id="alias"),
        pytest.param("blue", "blue", None, BLUE, id="other_model"),
        pytest.param("blue-sql", "blue", "blue-sql", BLUE, id="adapter"),
        pytest.param("blue:sql", "blue", "sql", BLUE, id="adapter_behind_the_name"),
    ],
)
async def test_request_is_tokenized_as_the_model_it_names(
    name: str, like: str, lora: str | None, labels: Mapping[str, str], tmp_path: Path
) -> None:
    models = two_models(tmp_path)

    prompt, others = (
        await prompt_of(models, name),
        {each: await prompt_of(models, each) for each in ("red", "blue")},
    )
    await models.stop()

    assert prompt.tokens == others[like].tokens
    assert others["red"].tokens != others["blue"].tokens
    assert prompt.lora == lora
    assert models.endpoint_labels(name) == labels


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score", "/pooling", "/tokenize"])
async def test_request_of_an_api_without_known_prompt_goes_to_the_model_that_it_names(
    path: str, tmp_path: Path
) -> None:
    models = two_models(tmp_path)
    prompt = await models.tokenize(parse_body(path, b'{"model": "blue", "query": "hello"}'))
    await models.stop()

    assert prompt.tokens is None
    assert models.endpoint_labels(prompt.model) == BLUE


@pytest.mark.parametrize("name", ["green", "", "green:red"])
async def test_request_for_none_of_several_models_has_no_tokens_and_may_go_anywhere(
    name: str, tmp_path: Path
) -> None:
    models = two_models(tmp_path)

    request = parse_body("/v1/completions", b'{"model": "red", "prompt": "hello"}')
    prompt = await models.tokenize(type(request)(model=name, prompt=request.prompt))
    await models.stop()

    assert (prompt.tokens, prompt.reason) == (None, NoPrefixReason.UNKNOWN_MODEL)
    assert not models.endpoint_labels(name)


async def test_message_without_model_counts_its_ids_where_several_models_are_served(tmp_path: Path) -> None:
    models = two_models(tmp_path)

    prompt = await models.tokenize(vllm_request("Generate", frame(tokenized(*range(300)))))
    await models.stop()

    assert (prompt.tokens, prompt.n_estimated) == (None, 300)


@pytest.mark.parametrize("name", ["red", "an-adapter"])
async def test_one_model_takes_every_name(name: str) -> None:
    models = served(ModelConfig(names=("red",), tokenizer=str(TINY)))

    prompt = await prompt_of(models, name)
    await models.stop()

    assert prompt.tokens
    assert not models.differ
    assert models.names == {"red"}
