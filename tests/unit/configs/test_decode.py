"""Conversion of plain data to a schema: paths, wording, and all problems at once."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, inspect

from kvatlas.configs.decode import decode
from kvatlas.configs.describe import expected, found
from kvatlas.configs.listeners import HostPattern
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.configs.units import Duration


class Inner(msgspec.Struct, frozen=True, rename="camel"):
    """A section in a list."""

    some_port: Annotated[int, Meta(ge=1, le=65535)]
    label: str = ""


class Outer(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="Outer"):
    """One field of every kind the schema may use."""

    inner: Annotated[tuple[Inner, ...], Meta(min_length=1, max_length=2)] = (Inner(some_port=1),)
    words: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    size: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"
    share: Annotated[float, Meta(ge=0)] = 0.0
    delay: Duration = Duration(1)
    name: Annotated[str, Meta(min_length=1, max_length=4)] = "x"
    address: str | None = None
    enabled: bool = False
    extra: Inner | None = None


NO_PORT: dict[str, object] = {"inner": [dict[str, object]()]}


def problems_of(data: object) -> list[str]:
    result = decode(data, Outer)
    assert isinstance(result, list)
    return [str(problem) for problem in result]


def test_valid_data_is_decoded() -> None:
    result = decode(
        {"kind": "Outer", "inner": [{"somePort": 80}], "delay": "2s", "size": 3, "address": None}, Outer
    )

    assert result == Outer(inner=(Inner(some_port=80),), delay=Duration(2), size=3)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        pytest.param(
            {"inner": []}, "inner: found 0 entries, expected a list of 1 to 2 entries", id="too_short"
        ),
        pytest.param(
            {"inner": [{"somePort": 1}] * 3},
            "inner: found 3 entries, expected a list of 1 to 2 entries",
            id="too_long",
        ),
        pytest.param(
            {"share": float("inf")}, "share: found infinity, expected a number of at least 0", id="infinite"
        ),
        pytest.param(
            NO_PORT,
            "inner[0].somePort: missing, expected a whole number from 1 to 65535",
            id="missing",
        ),
        pytest.param(
            {"inner": [{"somePort": 0}]},
            "inner[0].somePort: found 0, expected a whole number from 1 to 65535",
            id="low",
        ),
        pytest.param(
            {"inner": [{"somePort": 1}, 7]},
            "inner[1]: found 7, expected a mapping with keys somePort, label",
            id="entry",
        ),
        pytest.param(
            {"inner": [{"somePort": 1, "some_port": 1}]},
            "inner[0].some_port: unknown key; did you mean 'somePort'? allowed: somePort, label",
            id="near_key",
        ),
        pytest.param(
            {"inner": [{"somePort": 1, 8080: 1}]},
            'inner[0]["8080"]: unknown key; allowed: somePort, label',
            id="key_that_is_no_text",
        ),
        pytest.param(
            {"inner": {}}, "inner: found a mapping, expected a list of 1 to 2 entries", id="no_list"
        ),
        pytest.param(
            {"words": ["a", 3]}, "words[1]: found 3, expected text (put it in quotes)", id="number_as_text"
        ),
        pytest.param({"words": None}, "words: found nothing, expected a list", id="nothing"),
        pytest.param({"labels": ["a"]}, "labels: found a list, expected a mapping", id="no_mapping"),
        pytest.param(
            {"labels": {"zone": False}},
            "labels.zone: found false, expected text (put it in quotes)",
            id="bare_no",
        ),
        pytest.param(
            {"labels": {"a.b/c": date(2024, 1, 2)}},
            'labels["a.b/c"]: found 2024-01-02, expected text (put it in quotes)',
            id="bare_date",
        ),
        pytest.param(
            {"labels": {1: "a"}},
            'labels["1"]: found 1, expected text (put it in quotes)',
            id="label_key_no_text",
        ),
        pytest.param(
            {"size": 0}, "size: found 0, expected a whole number of at least 1 or 'auto'", id="union_low"
        ),
        pytest.param(
            {"size": "big"},
            "size: found 'big', expected a whole number of at least 1 or 'auto'",
            id="union_word",
        ),
        pytest.param({"share": float("nan")}, "share: found nan, expected a number of at least 0", id="nan"),
        pytest.param({"share": "2"}, "share: found '2', expected a number of at least 0", id="quoted_number"),
        pytest.param(
            {"delay": 50},
            "delay: found 50, expected a duration like 50ms, 2s or 1m, above zero",
            id="bare_duration",
        ),
        pytest.param({"name": ""}, "name: found '', expected text of 1 to 4 characters", id="empty_text"),
        pytest.param({"address": []}, "address: found a list, expected text", id="optional"),
        pytest.param({"enabled": "yes"}, "enabled: found 'yes', expected true or false", id="bool"),
        pytest.param(
            {"extra": {"somePort": 1, "lable": ""}},
            "extra.lable: unknown key; did you mean 'label'? allowed: somePort, label",
            id="key_of_an_optional_section",
        ),
    ],
)
def test_each_problem_has_path_value_and_allowed_values(part: dict[str, object], problem: str) -> None:
    assert problems_of({"kind": "Outer", **part}) == [problem]


def test_all_problems_are_reported_at_once() -> None:
    data = {"kind": "Outer", "colour": 1, "words": 3, "inner": [{"somePort": 0}, {"somePort": 1, "label": 2}]}

    assert [problem.partition(":")[0] for problem in problems_of(data)] == [
        "colour",
        "inner[0].somePort",
        "inner[1].label",
        "words",
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param({"words": 3}, "kind: missing, expected 'Outer'", id="missing"),
        pytest.param({"kind": "Other", "words": 3}, "kind: found 'Other', expected 'Outer'", id="other"),
    ],
)
def test_another_kind_of_file_is_the_only_problem(data: object, problem: str) -> None:
    assert problems_of(data) == [problem]


@pytest.mark.parametrize("data", [[], "text", 3, None])
def test_a_file_without_a_mapping_is_one_problem(data: object) -> None:
    (problem,) = problems_of(data)

    assert problem.startswith(f"found {found(data)}, expected a mapping with keys inner, words")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        (True, "true"),
        (False, "false"),
        (float("nan"), "nan"),
        (float("-inf"), "infinity"),
        (1.5, "1.5"),
        (2**63 - 1, "9223372036854775807"),
        (2**63, "9223372036854775808, which is too large"),
        ("a\nb", r"'a\nb'"),
        ("x" * 100, "'" + "x" * 59 + "...'"),
    ],
)
def test_found_values_fit_one_line(value: object, words: str) -> None:
    assert found(value) == words


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        pytest.param(
            Annotated[tuple[int, ...], Meta(min_length=1)], "a list, not empty", id="no_upper_limit"
        ),
        pytest.param(float, "a number", id="no_limits"),
        pytest.param(Annotated[float, Meta(gt=0.5)], "a number above 0.5", id="above"),
        pytest.param(
            Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1", id="above_and_at_most"
        ),
        pytest.param(Annotated[int, Meta(ge=2)], "a whole number of at least 2", id="at_least"),
        pytest.param(Annotated[str, Meta(max_length=9)], "text of at most 9 characters", id="at_most"),
        pytest.param(HostPattern, "a host name such as kv.example, *.corp.example or *", id="long_pattern"),
    ],
)
def test_open_limits_are_left_out(annotation: object, words: str) -> None:
    assert expected(inspect.type_info(annotation)) == words


def test_a_type_without_words_is_a_mistake_in_the_schema() -> None:
    with pytest.raises(TypeError, match="has no words here"):
        expected(inspect.type_info(bytes))


class Foreign(msgspec.Struct):
    """Struct of another package, with a type that this schema does not use."""

    key: bytes


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param({"key": 3}, "key: found 3, expected another value", id="wrong"),
        pytest.param({}, "key: missing, expected another value", id="missing"),
    ],
)
def test_values_of_third_party_types_are_rejected_in_general_words(data: object, problem: str) -> None:
    result = decode(data, Foreign)

    assert isinstance(result, list)
    assert [str(each) for each in result] == [problem]


@pytest.mark.parametrize(
    "section",
    [
        pytest.param({"tiers": [{"name": "gpu", "lruCapacityPerServer": 10**30}]}, id="capacity"),
        pytest.param({"tiers": [{"name": "gpu", "offloadChunkBlocks": 10**30}]}, id="chunk"),
        pytest.param({"approximate": {"lruCapacityPerServer": 10**30}}, id="approximate"),
        pytest.param({"extProc": {"maxHeldBytes": 10**30}}, id="held_by_ext_proc"),
        pytest.param({"rest": {"maxHeldBytes": 10**30}}, id="held_by_rest"),
    ],
)
def test_numbers_that_native_code_cannot_hold_are_refused(section: dict[str, object]) -> None:
    result = decode({"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig"} | section, KVAtlasConfig)
    assert isinstance(result, list)
    (problem,) = result
    assert problem.message.startswith(
        f"found {10**30}, which is too large, expected a whole number from 1 to "
    )
