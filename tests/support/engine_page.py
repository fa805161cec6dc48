"""The page `docs/engines.md`: how many recorded answers of each engine the index predicts, counted by replaying them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path

from kvatlas.indexer.factory import IndexCore, index_core
from support.engine_recordings import GOLDEN, SGLANG, VLLM, Replay, atlas_of
from support.recording import read_frames, read_truth
from support.tree import ROOT

PAGE = ROOT / "docs" / "engines.md"

DROPPING = {"e2_eagle_drop", "e3_eagle_offload"}
"""Cases whose drafter computes the last matched block again."""

_HEAD = """\
# Engines

What kvatlas knows of each engine, and how exact it is: recordings of engines were replayed into the index, and what it says of every
request was compared with the number of cached tokens that the engine itself reported. Exact means equal to the token.
`make engines` writes the figures; a test compares them.

| engine | recording | exact | of | what was recorded |
|---|---|---:|---:|---|
"""

_TAIL = """
Without a further word, kvatlas handles:

| engine | feature | rule, and the key that sets it |
|---|---|---|
| vLLM | EAGLE, EAGLE3, MTP with block hashes that cover the next tokens | block keys have the same lookahead; nothing to set |
| vLLM | the same drafters with older versions, a KV connector, or `disable_lookahead_block_hashes` | the last matched block is computed again. `vllm:spec_decode_*` in the metrics switches the rule on, and so do two requests that store a block again which was held; two answers in a row, or sixteen stores that continue held blocks, switch it off again for drafters that drop nothing (n-gram, draft model); label `kvatlas.io/drops-last-block` of the endpoint |
| vLLM | `kv_cache_report_mode=full` | a store that only repeats what is held adds no copy, once one such store was continued in its batch |
| vLLM | CPU tier | its size comes from `vllm:kv_offload_config_info`; `tiers[].lruCapacityPerServer` |
| vLLM | CPU tier of several blocks per chunk | learned from events; `tiers[].offloadChunkBlocks` |
| vLLM | window and full attention, with or without a CPU tier | per group; nothing to set |
| vLLM | CPU tier emptied by `/reset_prefix_cache?reset_external=true` | an [answer](audit.md#rules-that-events-do-not-tell) that contradicts it empties it in the index |
| SGLang | host tier (`CPU_PINNED`) | one tree of pages: at most the tokens before the last, no chunks, a flush empties both tiers |
| all | prompts that end with a block and are held whole | slower tiers supply the last block, but for SGLang, and but for the last token with window and full attention; label `kvatlas.io/reuses-whole-prompts` of the endpoint |
| SGLang | `cache_salt`, LoRA adapters | part of the block key |
| SGLang | pages of (token, next token) pairs with EAGLE | read as tokens with a lookahead of one |
| all | slower tier's events before the first of the GPU | read with the block size of the metrics |
| all | replays with other time stamps than live batches | after the second contradiction within a minute stamps are no evidence; the [doctor](doctor.md) names the publisher |

The two recordings with that rule have its label here. By their stores alone, without metrics, label or answers, 48 and 47 of 50 requests
are exact.

What no event tells stays wrong in the recordings: in `r1_reset` requests after a reset. With answers fed in, two of them are left.
A restarted engine has empty caches, and sends no event before its first request. kvatlas learns of it when the event connection is back
and the publisher no longer has the last batch, or by the process start time in the metrics. Both are tried again within about a
second. A request that is quicker is expected to find what the process before it held; the endpoint's trust is `stale` meanwhile.
"""


def page() -> str:
    """Return the whole page. Cost: some seconds."""
    core = index_core()
    rows = [("vLLM 0.32.0", "run8", *_of_032(core), "GPU and CPU tiers, LoRA, salts")]
    for engine, folder in (("vLLM 0.33.0", VLLM), ("SGLang 0.5.23", SGLANG)):
        for case, what in _cases(folder):
            replay = Replay(folder / case, core, dropped=int(case in DROPPING))
            rows.append((engine, case, replay.n_requests - len(replay.wrong), replay.n_requests, what))
    lines = [f"| {engine} | `{case}` | {exact} | {n} | {what} |\n" for engine, case, exact, n, what in rows]
    total = f"| all | | {sum(row[2] for row in rows)} | {sum(row[3] for row in rows)} | |\n"
    return "".join((_HEAD, *lines, total, _TAIL))


def written_figures() -> dict[str, int]:
    """Return recording -> exact answers, as the page has them."""
    rows = re.findall(r"\| `(\w+)` \| (\d+) \|", PAGE.read_text())
    return {case: int(exact) for case, exact in rows}


def _cases(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the cases of a folder, and what its page says of them."""
    for line in (folder / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[a-z]+\d?_\w+", cells[0]):
            yield cells[0], cells[-1]


def _of_032(core: IndexCore) -> tuple[int, int]:
    folder = GOLDEN / "vllm-0.32.0"
    atlas, frames = atlas_of(core), read_frames(folder / "run8_zmq.jsonl")
    requests, n_exact, played = read_truth(folder / "run8_truth.jsonl"), 0, 0
    for request in requests:
        while played < len(frames) and frames[played].received_at <= request.t0:
            atlas.apply("e", 0, core.decode_batch(frames[played].parts[2]))
            played += 1
        lora = None if request.model == "tiny" else request.model
        found = atlas.match(atlas.prefix(array("I", request.tokens), lora=lora, salt=request.salt))
        n_exact += (found["e"].usable_tokens if found else 0) == request.cached_tokens
    return n_exact, len(requests)


if __name__ == "__main__":
    PAGE.write_text(page())
