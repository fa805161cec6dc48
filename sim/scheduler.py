"""One engine's scheduler: it decides which requests compute how many tokens in each step, and how long the step takes.

Pure: `begin_step` and `end_step` take the time and return values. `engine.py` sleeps between them, `virtual_engine.py`
does not wait. First come, first served, chunked prefill and preemption of the youngest, as in vLLM.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from .block_cache import BlockCache, Hit, Transfer, Wait
from .kv_events import Event
from .kv_exchange import KvConnector
from .load import Counters, Load
from .request import Generated, Request
from .service_times import Run, ServiceTimes, StepWork
from .tier_copies import TierCopies

MAX_FETCHES = 8
"""Maximum fetches from the storage tier per request. If the CPU tier is so small that each fetch evicts the chunks of the
previous one, the request would otherwise wait forever."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of one step: tokens, and the events to publish as one batch."""

    tokens: tuple[Generated, ...]
    events: tuple[Event, ...]


@dataclass(slots=True)
class _Step:
    """A step between its begin and its end. Events are in the order of a real server: GPU tier, then CPU tier."""

    gpu_events: list[Event]
    cpu_events: list[Event] = field(default_factory=list[Event])
    work: list[tuple[Request, int]] = field(default_factory=list[tuple[Request, int]])
    offloads: list[Transfer] = field(default_factory=list[Transfer])
    began_at: float = 0.0
    run: Run = field(default_factory=lambda: Run(0.0))
    may_repeat: bool = True
    failed: list[Request] = field(default_factory=list[Request])
    encode_s: float = 0.0


class Scheduler:
    """Queues and running set of one engine.

    Args:
        cache: the engine's block cache.
        times: service times.
        max_num_seqs: maximum number of concurrently running requests.
        max_num_batched_tokens: maximum number of tokens per step.
        connector: sends KV state to other engines and pulls theirs; None for an engine that does neither.
    """

    def __init__(
        self,
        cache: BlockCache,
        *,
        times: ServiceTimes,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 8192,
        connector: KvConnector | None = None,
    ) -> None:
        self.cache = cache
        self.connector = connector
        self.counters = Counters()
        self.load = Load()
        self._times = times
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._arrived: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._step: _Step | None = None
        self._copies = TierCopies(cache, times)
        self._unpublished: list[Event] = []

    def add(self, request: Request) -> None:
        """Queue a request for the next step.

        Raises:
            ValueError: prompt and output together do not fit the GPU.
        """
        n_tokens = len(request.prompt) + len(request.output)
        limit = self.cache.gpu_tokens
        if n_tokens > limit:
            raise ValueError(f"request of {n_tokens} tokens, the GPU holds {limit}")
        self._arrived.append(request)
        self.cut_run()

    def abort(self, request: Request) -> None:
        """Drop a request in any state; no effect if it has finished."""
        for queue in (self._arrived, self._waiting, self._running):
            if request in queue:
                queue.remove(request)
        self._release(request)
        if self._step is not None:
            self._step.work = [item for item in self._step.work if item[0] is not request]
        self.cut_run()

    def reset_cache(self, *, cpu: bool = False) -> bool:
        """Clear the prefix cache if no request uses it; return whether it did. The next step publishes the event."""
        events = self.cache.reset(cpu=cpu)
        self._unpublished += events or []
        return events is not None

    def cut_run(self) -> None:
        """Let the current run end with its first step, since something has changed."""
        if self._step is not None:
            self._step.run.n_steps = 1

    def next_copy_at(self) -> float | None:
        """Return when the next copy between tiers completes; None if there is none."""
        return self._copies.next_at()

    def begin_step(self, now: float) -> Run | None:
        """Decide the next step.

        Args:
            now: seconds on the clock of the service times.
        Returns:
            duration of the step, and the number of equal steps that can follow without a decision; None if there is nothing
            to do until a copy between tiers completes or a request arrives.
        """
        self._copies.advance(now)
        if self.connector is not None:
            self.connector.free_expired(now)
        self._waiting += self._arrived
        self._arrived.clear()
        step = self._decide(now)
        if step is None:
            self.load = self._current_load()
            return None
        self._unpublished = []
        self._step, step.began_at = step, now
        step.run = self._run_of(step, now)
        return step.run

    def end_step(self, n_steps: int = 1) -> StepOutput:
        """End the current step and its repetitions; return their tokens and events.

        Args:
            n_steps: number of completed steps, from 1 to the run's.
        Raises:
            RuntimeError: there is no current step.
        """
        if self._step is None:
            raise RuntimeError("end_step without begin_step")
        step, self._step = self._step, None
        if n_steps > 1:
            self._repeat(step, n_steps - 1)
        now = step.began_at + step.run.duration(n_steps)
        tokens = tuple(each for request, _n in step.work for each in self._sample(request, n_steps, now))
        failed = tuple(Generated(request, (), finished=True, has_failed=True) for request in step.failed)
        self._copies.advance(now)
        events, n_blocks = self._copies.complete_offloads()
        step.cpu_events += events
        self.counters.stored_blocks += n_blocks
        self._copies.offload(step.offloads, now=now)
        self.load = self._current_load()
        return StepOutput(tokens + failed, tuple(step.gpu_events + step.cpu_events))

    def _decide(self, now: float) -> _Step | None:
        """Decide the next step; None if there is nothing to do."""
        if not (self._waiting or self._running or self._copies):
            return None
        step = _Step(gpu_events=self._unpublished, cpu_events=self._copies.complete_fetches(now))
        n_preempted = self.counters.preemptions
        budget = self._schedule_running(step, self._max_num_batched_tokens)
        step.may_repeat = self.counters.preemptions == n_preempted
        # vLLM admits nobody in a step that preempts. If all were preempted it runs an empty step, and admits in the next.
        if step.may_repeat or not step.work:
            self._schedule_waiting(step, budget, now)
        for request, _n_tokens in step.work:
            self._offload(step, request)
        is_visible = step.work or step.gpu_events or step.cpu_events or step.failed
        does_something = is_visible or self._copies.ends_with_the_step
        return step if does_something else None

    def _current_load(self) -> Load:
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            deferred=sum(request.deferred or request.load is not None for request in self._waiting),
            kv_usage=self.cache.usage,
            running_loras=frozenset(request.lora.name for request in self._running if request.lora),
            waiting_loras=frozenset(request.lora.name for request in self._waiting if request.lora),
        )

    def _run_of(self, step: _Step, now: float) -> Run:
        """Compute the duration of the step, and of the equal steps that can follow it."""
        work, n_decoding = StepWork(), 0
        for request, n_tokens in step.work:
            sequence, lease = request.admitted()
            if n_tokens == 1 and request.n_generated and lease.n_computed == len(sequence):
                work.add_decode(n_context=len(sequence))
                n_decoding += 1
            else:
                work.add_prefill(n_tokens, end=lease.n_computed)
        seconds = self._times.of_step(work) + step.encode_s + self._copies.take_stall()
        run = Run(seconds, self._times.context_s_per_token * n_decoding)
        is_alone = not (step.offloads or step.cpu_events or self._copies.ends_with_the_step)
        if n_decoding and n_decoding == len(step.work) == len(self._running) and is_alone and step.may_repeat:
            run.n_steps = self._repeatable(step.work)
            copy_at = self._copies.next_at()
            if copy_at is not None:
                run.n_steps = run.steps_until(copy_at - now)
        return run

    def _repeatable(self, work: list[tuple[Request, int]]) -> int:
        """Count the steps until a request ends, or may get no block; at least 1."""
        blocks_each = (self.cache.gpu.n_free - self.cache.n_reserved) // len(work)
        n_ending = min(request.n_left for request, _n in work)
        n_steps = max(1, min(n_ending, (blocks_each - 1) * self.cache.block_size))
        if (
            self._waiting and self.cache.has_storage
        ):  # a block that is evicted may be fetched for one that waits
            leases = [request.admitted()[1] for request, _n in work]
            n_free = min(len(lease.blocks) * self.cache.block_size - lease.n_computed for lease in leases)
            n_steps = min(n_steps, 1 + max(0, n_free))
        return n_steps

    def _schedule_running(self, step: _Step, budget: int) -> int:
        for request in tuple(self._running):
            if budget <= 0:
                break
            if request.lease is None:  # preempted for one before it
                continue
            budget -= self._run(step, request, budget)
        return budget

    def _run(self, step: _Step, request: Request, budget: int) -> int:
        """Extend a running request, preempting the youngest ones if blocks are missing; return the tokens it computes."""
        sequence, lease = request.admitted()
        n_tokens = min(budget, len(sequence) - lease.n_computed)
        while (events := self.cache.extend(lease, n_tokens)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is request:
                return 0
        step.gpu_events += events
        step.work.append((request, n_tokens))
        return n_tokens

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._release(request)
        self._waiting.appendleft(request)
        self.counters.preemptions += 1

    def _release(self, request: Request) -> None:
        if request.lease is not None:
            self.cache.release(request.lease)
        request.lease = request.load = None

    def _schedule_waiting(self, step: _Step, budget: int, now: float) -> None:
        """Admit requests in order of arrival until one does not fit; later ones that have blocks already still run."""
        full = False
        for request in tuple(self._waiting):
            if budget <= 0 or len(self._running) >= self._max_num_seqs:
                break
            if request.lease is None and not full:
                outcome = self._admit(step, request, now)
                full = outcome is Wait.NO_ROOM
                request.deferred = outcome is Wait.DEFERRED
            if request.load is not None and request.load.has_failed:
                self._waiting.remove(request)
                self._release(request)
                step.failed.append(request)
                continue
            if request.lease is None or (request.load is not None and not request.load.is_done):
                continue
            if request.load is not None:
                step.gpu_events += self.cache.complete_load(request.lease)
                request.load = None
            self._waiting.remove(request)
            self._running.append(request)
            step.encode_s += request.encode_s
            request.encode_s = 0.0
            budget -= self._run(step, request, budget)

    def _admit(self, step: _Step, request: Request, now: float) -> Wait | None:
        sequence = request.block_sequence(self.cache.block_size)
        if request.remote is None and (request.fetched_at > now or self._fetch(step, request, now)):
            return Wait.DEFERRED
        admitted = self.cache.admit(sequence, remote=request.remote is not None)
        if isinstance(admitted, Wait):
            return admitted
        request.lease, events = admitted
        step.gpu_events += events
        hit = request.lease.hit
        if hit.cpu_tokens:
            request.load = self._copies.load(hit.cpu_tokens, now=now)
            self.counters.loaded_blocks += hit.cpu_tokens // self.cache.block_size
        if hit.remote_tokens:
            self._pull(request, hit.remote_tokens, now)
        if request.cached_tokens is None:
            self._count_lookup(request, hit)
        return None

    def _pull(self, request: Request, n_tokens: int, now: float) -> None:
        if self.connector is None or request.remote is None:
            raise RuntimeError(f"request {request.request_id} has no KV state to pull")
        n_blocks = min(-(-n_tokens // self.cache.block_size), request.remote.n_blocks)
        request.load = self.connector.pull(request.remote, n_blocks * self.cache.block_size, now=now)
        request.remote = None  # a preempted request computes its prompt itself

    def _fetch(self, step: _Step, request: Request, now: float) -> bool:
        """Begin to fetch the request's chunks from storage into the CPU tier; return whether there are any."""
        if request.n_fetches == MAX_FETCHES:
            return False
        fetch = self.cache.fetch(request.block_sequence(self.cache.block_size))
        if not fetch.chunks:
            return False
        n_tokens = len(fetch.chunks) * self.cache.chunk_blocks * self.cache.block_size
        request.n_fetches += 1
        if request.cached_tokens is None:
            request.fetched_tokens += n_tokens
        step.cpu_events += fetch.events
        request.fetched_at = self._copies.fetch(fetch, now=now)
        return True

    def _count_lookup(self, request: Request, hit: Hit) -> None:
        gpu_tokens, cpu_tokens = hit.gpu_blocks * self.cache.block_size, hit.cpu_tokens
        request.pulled_tokens = max(0, hit.remote_tokens - 1)  # the last token is computed again
        request.cached_tokens = gpu_tokens + cpu_tokens + request.pulled_tokens
        request.gpu_tokens = gpu_tokens
        request.fetched_tokens = min(request.fetched_tokens, cpu_tokens)
        counters = self.counters
        counters.prompt_tokens += len(request.prompt)
        counters.gpu_queries += len(request.prompt)
        counters.gpu_hits += gpu_tokens
        counters.pulled_tokens += request.pulled_tokens
        if self.cache.cpu.capacity or hit.remote_tokens:
            counters.cpu_queries += len(request.prompt) - gpu_tokens
            counters.cpu_hits += cpu_tokens - request.fetched_tokens
            counters.storage_hits += request.fetched_tokens

    def _offload(self, step: _Step, request: Request) -> None:
        _sequence, lease = request.admitted()
        offload = self.cache.offload(lease)
        step.cpu_events += offload.events
        if offload.chunks:
            step.offloads.append(offload)

    def _repeat(self, step: _Step, n_times: int) -> None:
        """Repeat a decoding step for all requests in parallel, so that no block is freed before the last repetition."""
        for request, _n_tokens in step.work:
            sequence, lease = request.admitted()
            sequence.extend(request.output[request.n_generated : request.n_generated + n_times])
            step.gpu_events += self.cache.extend(lease, n_times) or ()
            request.n_generated += n_times

    def _sample(self, request: Request, n_steps: int, now: float) -> tuple[Generated, ...]:
        """Generate the next token of a request whose tokens are all computed, after those of the repeated steps."""
        sequence, lease = request.admitted()
        if lease.n_computed < len(sequence):
            return ()
        end = request.n_generated + 1
        sequence.extend(request.output[request.n_generated : end])
        request.n_generated = end
        self.counters.generated_tokens += n_steps
        finished = not request.n_left
        if finished:
            self._running.remove(request)
            self._keep(request, now)
            self._release(request)
        return (Generated(request, request.output[end - n_steps : end], finished),)

    def _keep(self, request: Request, now: float) -> None:
        """Keep the blocks of a request that asks for it, until another engine has pulled them."""
        if self.connector is None or not request.keeps_kv or request.lease is None:
            return
        request.kept_blocks = tuple(request.lease.blocks)
        self.connector.keep(request.request_id, partial(self.cache.release, request.lease), now=now)
        request.lease = None
