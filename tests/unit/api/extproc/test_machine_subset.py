"""The endpoints a gateway allows, as the router is told; the ids are the numbers of the protocol cases."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.dialect import MAX_SUBSET, Dialect, LlmD, Proposal
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    make_route,
    metadata_of,
    request_body,
    request_headers,
    subset_hint,
)

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def values(*items: Value) -> Value:
    return Value(list_value=ListValue(values=items))


CASES = [
    pytest.param(subset_hint([A, B]), {A, B}, id="S1_list"),
    pytest.param(subset_hint([A]), {A}, id="S2_single"),
    pytest.param(subset_hint([]), set[str](), id="S4_empty_list"),
    pytest.param(None, None, id="S5_no_metadata"),
    pytest.param(metadata_of("other", "key", Value(string_value=A)), None, id="S5_no_namespace"),
    pytest.param(
        metadata_of("envoy.lb.subset_hint", "other", Value(string_value=A)), None, id="S5_key_missing"
    ),
    pytest.param(subset_hint(Value(string_value=f"{A},{B}")), {A, B}, id="S6_string"),
    pytest.param(subset_hint(Value(string_value=f" {A} ,, {B} ")), {A, B}, id="S6_string_with_blanks"),
    pytest.param(subset_hint(Value(string_value="")), set[str](), id="S6_empty_string"),
    pytest.param(subset_hint(["10.0.0.1", B]), {"10.0.0.1", B}, id="S7_ip_without_port"),
    pytest.param(
        subset_hint(
            values(
                Value(string_value=f" {A} "),
                Value(string_value=f"{B},10.0.0.3"),
                Value(number_value=7),
                Value(bool_value=True),
                Value(struct_value=Struct()),
                Value(),
            )
        ),
        {A, B, "10.0.0.3"},
        id="S8_blanks_commas_and_other_types",
    ),
    pytest.param(subset_hint(values(Value(number_value=7))), set[str](), id="S8_nothing_readable"),
    pytest.param(subset_hint(Value(number_value=7)), None, id="neither_list_nor_string"),
]


@pytest.mark.parametrize(("metadata", "subset"), CASES)
def test_subset_is_read_from_the_headers_message(
    metadata: pb.Metadata | None, subset: set[str] | None
) -> None:
    driver = MachineDriver(make_route(A))

    driver.send(request_headers(metadata=metadata, end=True))

    assert driver.requests[0].subset == subset


@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
@pytest.mark.parametrize(("metadata", "subset"), CASES)
def test_subset_is_read_from_the_body_message(
    metadata: pb.Metadata | None, subset: set[str] | None, config: pb.ProtocolConfiguration
) -> None:
    driver = MachineDriver(make_route(A))

    driver.send(request_headers(config=config), request_body(b"{}", end=True, metadata=metadata))

    assert driver.requests[0].subset == subset


def test_subset_of_a_later_message_wins() -> None:
    driver = MachineDriver(make_route(A))

    driver.send(
        request_headers(config=DUPLEX, metadata=subset_hint([A])),
        request_body(b"{}", metadata=subset_hint([B])),
        request_body(end=True, metadata=pb.Metadata()),
    )

    assert driver.requests[0].subset == frozenset({B})


MANY = [f"10.0.{number >> 8}.{number & 255}:80" for number in range(MAX_SUBSET + 1)]


@pytest.mark.parametrize("dialect", [Proposal(), LlmD()], ids=["proposal", "llm_d"])
@pytest.mark.parametrize("hint", [MANY, Value(string_value=",".join(MANY))], ids=["list", "text"])
def test_addresses_beyond_the_limit_are_not_allowed(dialect: Dialect, hint: Value | list[str]) -> None:
    allowed = dialect.subset(subset_hint(hint))

    assert allowed is None or len(allowed) == MAX_SUBSET
    assert (allowed is None) == (isinstance(dialect, LlmD) and isinstance(hint, Value))
