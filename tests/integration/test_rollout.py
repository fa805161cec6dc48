"""A rollout over ext-proc: one revision a request, whatever the profile, and 503 if no revision is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import DUPLEX, request_body, request_headers, response_headers
from support.gateway import gateway

pytestmark = pytest.mark.slow

SET = "disaggregatedset.x-k8s.io"
PLUGINS = [
    {
        "type": "disaggregatedset-rollout-screener",
        "parameters": {
            "scope": {"labelSelector": f"{SET}/name=mine"},
            "headerSelectors": [
                {"name": "r", "headerName": "x-revision", "labelKey": f"{SET}/revision", "mode": "strict"}
            ],
            "revisionGating": {"mode": "sum", "requireRoles": {"values": ["decode"]}},
        },
    },
    {"type": "active-request-scorer"},
]
PROFILES = [{"name": "decode", "plugins": [{"pluginRef": "active-request-scorer"}]}]


def server(name: str, port: int, revision: str) -> dict[str, Any]:
    labels = {f"{SET}/name": "mine", f"{SET}/revision": revision, f"{SET}/role": "decode"}
    return {"name": name, "address": f"127.0.0.1:{port}", "events": "", "metrics": "", "labels": labels}


async def test_request_stays_within_the_revision_that_its_header_names(tmp_path: Path) -> None:
    endpoints = {"static": [server("a", 1, "old"), server("b", 2, "new")]}
    async with gateway(tmp_path, plugins=PLUGINS, schedulingProfiles=PROFILES, endpoints=endpoints) as gate:
        picked = [await gate.request(10, ("x-revision", "new")) for _ in range(3)]
        stamped = await picked[0].say(response_headers())
        call = gate.open()
        head = request_headers((":path", "/v1/completions"), ("x-revision", "none"), config=DUPLEX)
        body = json.dumps({"model": "m", "prompt": "p"}).encode()
        for message in (head, request_body(body, end=True)):
            await call.write(message.SerializeToString())
        refused = await call.read()

    assert [each.endpoint for each in picked] == ["b", "b", "b"]
    changes = stamped.response_headers.response.header_mutation.set_headers
    assert ("x-revision", b"new") in [(each.header.key, each.header.raw_value) for each in changes]
    assert isinstance(refused, pb.ProcessingResponse)
    assert refused.immediate_response.status.code == 503
    assert b"screeners eliminated all endpoint candidates" in refused.immediate_response.body
