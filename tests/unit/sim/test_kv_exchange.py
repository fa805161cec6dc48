"""Two engines on a virtual clock: one computes a prompt, the other pulls it; all times are computed by hand."""

from __future__ import annotations

from array import array
from math import inf

import pytest

from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.kv_events import BlockStored
from kvatlas.sim.kv_exchange import KEEP_S, KvExchange
from kvatlas.sim.kv_network import KvNetwork, NetworkSpec
from kvatlas.sim.request import RemoteKv, Request
from kvatlas.sim.scheduler import Scheduler, StepOutput
from kvatlas.sim.service_times import ServiceTimes
from kvatlas.sim.virtual_engine import VirtualEngine

BLOCK = 4
STEP_S, TOKEN_S = 100.0, 1.0
TIMES = ServiceTimes(prefill_s_per_token=TOKEN_S, step_s=STEP_S)
BYTES_PER_S = 2.0
LATENCY_S = 3.0


class Pair:
    """A prefill engine `p` and two decode engines; a token's KV state is one byte."""

    def __init__(self, *, gpu_blocks: int = 64) -> None:
        self.network = KvNetwork(NetworkSpec(server_bytes_per_s=BYTES_PER_S, latency_s=LATENCY_S), {})
        self.exchange = KvExchange(self.network, bytes_per_token=1.0)
        self.outputs: list[tuple[str, float, StepOutput]] = []
        self.engines = {name: self._engine(name, gpu_blocks) for name in ("p", "d", "e")}

    def add(self, name: str, request: Request, now: float) -> Request:
        engine = self.engines[name]
        engine.advance(now)
        engine.add(request, now)
        return request

    def run(self, until: float = inf) -> None:
        """Run until nothing is left to do."""
        while (
            now := min(self.exchange.next_at(), *(each.next_at for each in self.engines.values()))
        ) <= until:
            if now == inf:
                return
            self.exchange.advance(now)
            for engine in self.engines.values():
                engine.advance(now)

    def prefill(self, n_prompt: int, *, first: int = 0, at: float = 0.0) -> Request:
        request = make_request(f"prefill-{first}-{at}", n_prompt, first=first)
        request.keeps_kv = True
        return self.add("p", request, at)

    def first_token_at(self, request: Request) -> float:
        return next(
            at for _name, at, output in self.outputs for each in output.tokens if each.request is request
        )

    def stored(self, name: str) -> list[int]:
        """Blocks per event of an engine."""
        return [
            len(event.block_hashes)
            for server, _at, output in self.outputs
            for event in output.events
            if server == name and isinstance(event, BlockStored)
        ]

    def _engine(self, name: str, gpu_blocks: int) -> VirtualEngine:
        cache = BlockCache(block_size=BLOCK, gpu_blocks=gpu_blocks)
        scheduler = Scheduler(cache, times=TIMES, connector=self.exchange.join(name, name))
        return VirtualEngine(scheduler, lambda at, output: self.outputs.append((name, at, output)))


def make_request(name: str, n_prompt: int, n_output: int = 1, *, first: int = 0) -> Request:
    return Request(name, array("I", range(first, first + n_prompt)), array("I", range(n_output)))


def remote_of(prefill: Request) -> RemoteKv:
    return RemoteKv("p", prefill.request_id, len(prefill.kept_blocks))


def test_decode_server_pulls_the_prompt_and_computes_its_last_token_again() -> None:
    pair = Pair()
    prefill = pair.prefill(16)
    pair.run()
    assert pair.first_token_at(prefill) == STEP_S + 16 * TOKEN_S
    decode = make_request("decode", 16, 2)
    decode.remote = remote_of(prefill)

    pair.add("d", decode, 200.0)
    pair.run()

    pulled_at = 200.0 + 16 / BYTES_PER_S + LATENCY_S
    assert pair.first_token_at(decode) == pulled_at + STEP_S + TOKEN_S
    assert (decode.cached_tokens, decode.gpu_tokens, decode.pulled_tokens) == (15, 0, 15)
    assert pair.stored("d") == pair.stored("p") == [4]


def test_prefill_server_keeps_the_blocks_until_they_are_pulled() -> None:
    pair = Pair()
    prefill = pair.prefill(16)
    pair.run()
    gpu = pair.engines["p"].scheduler.cache.gpu
    assert gpu.n_used == len(prefill.kept_blocks) == 4
    decode = make_request("decode", 16)
    decode.remote = remote_of(prefill)

    pair.add("d", decode, 200.0)
    pair.run(until=210.0)
    assert gpu.n_used == 4
    pair.run(until=211.0)

    assert gpu.n_used == 0


def test_decode_server_pulls_only_the_blocks_that_it_lacks() -> None:
    pair = Pair()
    pair.add("d", make_request("earlier", 8), 0.0)
    prefill = pair.prefill(16)
    pair.run()
    decode = make_request("decode", 16)
    decode.remote = remote_of(prefill)

    pair.add("d", decode, 200.0)
    pair.run()

    assert pair.first_token_at(decode) == 200.0 + 8 / BYTES_PER_S + LATENCY_S + STEP_S + TOKEN_S
    assert (decode.gpu_tokens, decode.pulled_tokens) == (8, 7)
    assert pair.stored("d") == [2, 2]


def test_two_pulls_share_the_card_of_the_prefill_server() -> None:
    pair = Pair()
    prefills = [pair.prefill(16), pair.prefill(16, first=100)]
    pair.run()
    decodes = [make_request("one", 16), make_request("two", 16, first=100)]
    for decode, prefill, server in zip(decodes, prefills, "de", strict=True):
        decode.remote = remote_of(prefill)
        pair.add(server, decode, 300.0)

    pair.run()

    at = 300.0 + 2 * 16 / BYTES_PER_S + LATENCY_S + STEP_S + TOKEN_S
    assert [pair.first_token_at(decode) for decode in decodes] == [at, at]


def test_pull_ends_during_a_run_of_equal_steps() -> None:
    pair = Pair()
    prefill = pair.prefill(16)
    pair.run()
    pair.add("d", make_request("busy", 4, 50, first=500), 200.0)
    decode = make_request("decode", 16)
    decode.remote = remote_of(prefill)

    pair.add("d", decode, 210.0)
    pair.run()

    begun_at = 200.0 + STEP_S + 4 * TOKEN_S  # the pull begins with the step after the request's arrival
    pulled_at = begun_at + 16 / BYTES_PER_S + LATENCY_S
    assert begun_at < pulled_at < begun_at + STEP_S
    assert pair.first_token_at(decode) == begun_at + 2 * STEP_S + TOKEN_S


def test_blocks_that_nobody_pulls_are_freed_in_the_end() -> None:
    pair = Pair()
    pair.prefill(16)
    pair.run()
    engine = pair.engines["p"]
    assert engine.scheduler.cache.gpu.n_used == 4

    pair.add("p", make_request("later", 4, first=900), STEP_S + 16 * TOKEN_S + KEEP_S)
    pair.run()

    assert engine.scheduler.cache.gpu.n_used == 0


@pytest.mark.parametrize("remote", [RemoteKv("gone", "r", 4), RemoteKv("p", "unknown", 4)])
def test_request_fails_when_nobody_keeps_its_blocks(remote: RemoteKv) -> None:
    pair = Pair()
    decode = make_request("decode", 16)
    decode.remote = remote

    pair.add("d", decode, 0.0)
    pair.run()

    assert [each.has_failed for _name, _at, output in pair.outputs for each in output.tokens] == [True]
    assert pair.engines["d"].scheduler.cache.gpu.n_used == 0


def test_request_fails_when_the_prefill_server_leaves_during_the_pull() -> None:
    pair = Pair()
    prefill = pair.prefill(16)
    pair.run()
    decode = make_request("decode", 16)
    decode.remote = remote_of(prefill)
    pair.add("d", decode, 200.0)

    connector = pair.engines["p"].scheduler.connector
    assert connector is not None
    pair.exchange.leave(connector)
    pair.run()

    assert [
        each.has_failed for name, _at, output in pair.outputs for each in output.tokens if name == "d"
    ] == [True]


def test_preempted_request_computes_its_prompt_itself() -> None:
    pair = Pair(gpu_blocks=8)
    prefill = pair.prefill(16)
    pair.run()
    decode = make_request("decode", 16, 9)
    decode.remote = remote_of(prefill)
    older = make_request("older", 4, 16, first=500)

    pair.add("d", older, 200.0)
    pair.add("d", decode, 200.0)
    pair.run()

    counters = pair.engines["d"].scheduler.counters
    assert (counters.preemptions, older.n_left, decode.n_left) == (1, 0, 0)
