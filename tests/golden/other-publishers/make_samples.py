"""Make samples.jsonl: one payload of each publisher whose schema is public, and what its events mean.

Use: python tests/golden/other-publishers/make_samples.py > tests/golden/other-publishers/samples.jsonl

The fields, their order and their defaults are those of the publishers' own encoders:
- tensorrt-llm: `kv_cache_events.py` of its PyTorch executor (maps tagged `type`, defaults left out, batch as an array);
  tensorrt-llm-windows: the same with the names that its pull interface has for groups and their windows,
- mooncake: the RFC #1527 publisher of `mooncake_master`, with and without the names of vLLM's form beside its own,
- kvbm: the consolidator of Dynamo's block manager (maps tagged `type`, absent options left out),
- vllm-umbp, vllm-simple-cpu, vllm-simple-disk: connectors of vLLM 0.33, one block per event; blocks that are not full have no tokens,
- lmcache: the publisher of the MP coordinator (positional arrays, hashes as bytes).
"""

from __future__ import annotations

import base64
import json
import sys

import msgspec

TOKENS = list(range(16))
VLLM_KEY = "Qwen/Qwen3-8B@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" + "ab" * 24 + "00000000000000aa"


def trt(kind: str, **fields: object) -> dict[str, object]:
    return {"type": kind, **fields}


def trt_stored(**more: object) -> dict[str, object]:
    return trt(
        "BlockStored", block_hashes=[11, 12], parent_block_hash=None, token_ids=TOKENS, block_size=8,
        lora_id=None, medium="GPU", lora_name=None, **more,
    )  # fmt: skip


def rfc(kind: str, **fields: object) -> dict[str, object]:
    envelope: dict[str, object] = {
        "event_id": 1, "timestamp": 1795360000000, "event_type": kind, "model_name": "m", "block_size": 8,
        "additional_salt": None, "lora_name": None, "tenant_id": "default", "backend_id": "daemon-0",
        "medium": "cpu", "dp_rank": 0,
    }  # fmt: skip
    return envelope | fields


def kvbm(medium: str | None, **fields: object) -> dict[str, object]:
    return {"type": "BlockStored", **fields} | ({"medium": medium} if medium else {})


def connector(kind: str, block: int, medium: str, **more: object) -> dict[str, object]:
    event: dict[str, object] = {"type": kind, "block_hashes": [100 + block]}
    if kind == "BlockStored":
        event |= {
            "parent_block_hash": 99 + block if block else None, "token_ids": list(range(16 * block, 16 * block + 16)),
            "block_size": 16, "lora_id": None, "medium": medium, "lora_name": None,
        }  # fmt: skip
    return event | {"medium": medium, "group_idx": 0, "locality": "LOCAL"} | more


SIMPLE = {"extra_keys": [None], "kv_cache_spec_kind": "full_attention"}
PARTIAL = {"parent_block_hash": None, "token_ids": []}
SAMPLES: dict[str, tuple[object, ...]] = {
    "vllm-umbp": (
        1795360000.5,
        [*(connector("BlockStored", block, "CPU") for block in range(3)), connector("BlockStored", 3, "CPU", **PARTIAL),
         connector("BlockRemoved", 2, "CPU")],
        0,
    ),
    "vllm-simple-cpu": (
        1795360000.5,
        [*(connector("BlockStored", block, "CPU", **SIMPLE) for block in range(3)), connector("BlockRemoved", 2, "CPU")],
        0,
    ),
    "vllm-simple-disk": (
        1795360000.5, [connector("BlockStored", block, "STORAGE", **SIMPLE) for block in range(3)], 0
    ),
    "tensorrt-llm": (1795360000.5, [trt_stored(), trt("BlockRemoved", block_hashes=[12], medium="GPU")], 0),
    "tensorrt-llm-images": (
        1795360000.5,
        [trt_stored(mm_keys=[[], [trt("mm_key", hash="5f" * 32, start_offset=3)]]) | {"token_ids": [*TOKENS[:-1], "5f5f"]}],
        1,
    ),
    "tensorrt-llm-windows": (
        1795360000.5,
        [trt_stored(layer_group_id=0, window_size=32768), trt_stored(layer_group_id=1, window_size=8),
         trt("BlockRemoved", block_hashes=[11], medium="GPU", layer_group_id=1, window_size=8)],
        0,
    ),
    "tensorrt-llm-reset": (1795360001.5, [trt("AllBlocksCleared")], 0),
    "mooncake-standard": (
        1795360000000,
        [rfc("stored", seq_hashes=[101, 102], base_block_idx=0, parent_hash=None, token_ids=None),
         rfc("removed", seq_hashes=[102], base_block_idx=1), rfc("cleared", medium=None)],
        0,
    ),
    "mooncake-tokens": (
        1795360000000, [rfc("stored", seq_hashes=[1, 2], base_block_idx=0, parent_hash=None, token_ids=TOKENS)], 0,
    ),
    "mooncake-connector": (
        1795360000000,
        [rfc("stored", group_id=0, object_key=VLLM_KEY, connector_block_hash="ab" * 24 + "00000000000000aa",
             seq_hashes=[0xAA], base_block_idx=None, parent_hash=None, token_ids=None, tp_rank=0),
         rfc("stored", object_key=VLLM_KEY.replace("tp_rank:0", "tp_rank:1"), seq_hashes=[0xAA]),
         rfc("removed", object_key=VLLM_KEY, seq_hashes=[0xAA], medium="disk")],
        0,
    ),
    "mooncake-legacy": (
        1795360000000,
        [{"type": "BlockStored", "block_hashes": [101], "object_key": "101"} | rfc("stored", seq_hashes=[101], token_ids=None),
         {"type": "AllBlocksCleared"} | rfc("cleared", medium=None)],
        0,
    ),
    "kvbm": (
        1795360000.5,
        [kvbm(None, block_hashes=[11], parent_block_hash=None, token_ids=TOKENS[:8], block_size=8),
         kvbm("CPU_TIER1", block_hashes=[11], parent_block_hash=None, token_ids=TOKENS[:8], block_size=8),
         {"type": "BlockRemoved", "block_hashes": [11], "medium": "CPU_TIER2"}],
        0,
    ),
    "lmcache-coordinator": (
        1795360000.5,
        [["BlockStored", [bytes.fromhex("16" * 32)], None, TOKENS, 16, None, "lmcache-l1"],
         ["BlockRemoved", [bytes.fromhex("16" * 32)], "lmcache-l1"]],
        None,
    ),
}  # fmt: skip


def main() -> None:
    """Write a line for each sample."""
    for name, batch in SAMPLES.items():
        payload = base64.b64encode(msgspec.msgpack.encode(batch)).decode()
        sys.stdout.write(json.dumps({"name": name, "payload_b64": payload}) + "\n")


if __name__ == "__main__":
    main()
