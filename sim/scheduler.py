"""One engine's scheduler: which requests compute how many tokens in each step, and how long the step takes.

Pure: `begin_step` and `end_step` take the time and return values; `engine.py` sleeps between them. First come, first
served, chunked prefill and preemption of the youngest, as in vLLM.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

from .block_cache import BlockCache, Lease, Offload, Wait
from .kv_events import Event
from .sequence import Lora, TokenSequence


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """How fast the simulated GPU is, in seconds.

    Attributes:
        prefill_s_per_token: each prompt token that was not cached.
        load_s_per_token: each prompt token read from the CPU tier; loads of one engine follow one another.
        step_s: each step beside that; a request gets one token a step, however many run.
    """

    prefill_s_per_token: float = 0.0002
    load_s_per_token: float = 0.00002
    step_s: float = 0.008


@dataclass(slots=True, eq=False)
class Request:
    """One request in the engine.

    Attributes:
        request_id: unique in the engine.
        prompt: token ids, at least one.
        output: the token ids the engine will generate, at least one.
        lora: adapter, or None.
        salt: `cache_salt`, or None.
        cached_tokens: prompt tokens reused, both tiers; None until admitted.
        n_generated: tokens generated so far.
        sequence: prompt and generated tokens; None until the engine looks at the request.
        lease: its hold on the cache; None while it has none.
        loaded_at: when its load is done; None when it waits for none.
        deferred: whether it waits for another's load or store.
    """

    request_id: str
    prompt: array[int]
    output: array[int]
    lora: Lora | None = None
    salt: str | None = None
    cached_tokens: int | None = None
    n_generated: int = 0
    sequence: TokenSequence | None = None
    lease: Lease | None = None
    loaded_at: float | None = None
    deferred: bool = False


@dataclass(slots=True)
class Counters:
    """What the engine counts for /metrics, in tokens unless named otherwise.

    Lookups of resumed requests are not counted, as in vLLM.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    gpu_queries: int = 0
    gpu_hits: int = 0
    cpu_queries: int = 0
    cpu_hits: int = 0
    stored_blocks: int = 0
    loaded_blocks: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load at the end of a step; what happens during a step shows only after it, as in vLLM.

    Attributes:
        running: requests in the running set.
        waiting: requests queued, those included that wait for a load.
        deferred: how many of these wait for a load, their own or another's.
        kv_usage: part of the GPU blocks in use, 0 to 1.
        running_loras: adapters of the running requests.
        waiting_loras: adapters of the waiting requests.
    """

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage: float = 0.0
    running_loras: frozenset[str] = frozenset()
    waiting_loras: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Generated:
    """A token of one request; `finished` with its last."""

    request: Request
    token: int
    finished: bool


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step made: tokens, and the events to publish as one batch."""

    tokens: tuple[Generated, ...]
    events: tuple[Event, ...]


@dataclass(slots=True)
class _Step:
    """A step between its begin and its end. Events wait in the order a server publishes: GPU tier, then CPU tier."""

    gpu_events: list[Event]
    cpu_events: list[Event] = field(default_factory=list[Event])
    work: list[tuple[Request, int]] = field(default_factory=list[tuple[Request, int]])
    offloads: list[Offload] = field(default_factory=list[Offload])


class Scheduler:
    """Queues and running set of one engine.

    Args:
        cache: the engine's block cache.
        times: service times.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens a step computes at most.
    """

    def __init__(
        self,
        cache: BlockCache,
        *,
        times: ServiceTimes,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 8192,
    ) -> None:
        self.cache = cache
        self.counters = Counters()
        self.load = Load()
        self._times = times
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._arrived: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._step: _Step | None = None
        self._in_flight: list[Offload] = []
        self._unpublished: list[Event] = []
        self._link_free_at = 0.0

    def add(self, request: Request) -> None:
        """Queue a request; the next step sees it.

        Raises:
            ValueError: prompt and output together do not fit the GPU.
        """
        n_tokens = len(request.prompt) + len(request.output)
        limit = self.cache.gpu.capacity * self.cache.block_size
        if n_tokens > limit:
            raise ValueError(f"request of {n_tokens} tokens, the GPU holds {limit}")
        self._arrived.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request, in whatever state; nothing happens when it has finished."""
        for queue in (self._arrived, self._waiting, self._running):
            if request in queue:
                queue.remove(request)
        self._release(request)
        if self._step is not None:
            self._step.work = [item for item in self._step.work if item[0] is not request]

    def reset_cache(self, *, cpu: bool = False) -> bool:
        """Empty the prefix cache when no request is in it; the event is published with the next step."""
        events = self.cache.reset(cpu=cpu)
        self._unpublished += events or []
        return events is not None

    def next_load_at(self) -> float | None:
        """When the next load from the CPU tier is done, None without one."""
        return min((r.loaded_at for r in self._waiting if r.loaded_at is not None), default=None)

    def begin_step(self, now: float) -> float | None:
        """Decide the next step.

        Args:
            now: seconds on the clock of the service times.
        Returns:
            seconds the step takes; None when nothing can be done before a load completes or a request arrives.
        """
        self._waiting += self._arrived
        self._arrived.clear()
        step = self._decide(now)
        if step is None:
            self.load = self._current_load()
            return None
        self._unpublished = []
        self._step = step
        return self._duration(step)

    def end_step(self) -> StepOutput:
        """The step begun last is done: its tokens, and its events.

        Raises:
            RuntimeError: no step was begun.
        """
        if self._step is None:
            raise RuntimeError("end_step without begin_step")
        step, self._step = self._step, None
        tokens = tuple(generated for request, _n in step.work for generated in self._sample(request))
        for offload in self._in_flight:
            step.cpu_events += self.cache.complete_offload(offload)
            self.counters.stored_blocks += len(offload.chunks) * self.cache.chunk_blocks
        self._in_flight = step.offloads
        self.load = self._current_load()
        return StepOutput(tokens, tuple(step.gpu_events + step.cpu_events))

    def _decide(self, now: float) -> _Step | None:
        """The next step; None when it would do nothing."""
        if not (self._waiting or self._running or self._in_flight):
            return None
        step = _Step(gpu_events=self._unpublished)
        n_preempted = self.counters.preemptions
        budget = self._schedule_running(step, self._max_num_batched_tokens)
        if self.counters.preemptions == n_preempted:
            self._schedule_waiting(step, budget, now)
        for request, _n_tokens in step.work:
            self._offload(step, request)
        does_something = step.work or step.gpu_events or step.cpu_events or self._in_flight
        return step if does_something else None

    def _current_load(self) -> Load:
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            deferred=sum(request.deferred or request.loaded_at is not None for request in self._waiting),
            kv_usage=self.cache.usage,
            running_loras=frozenset(request.lora.name for request in self._running if request.lora),
            waiting_loras=frozenset(request.lora.name for request in self._waiting if request.lora),
        )

    def _duration(self, step: _Step) -> float:
        if not step.work:
            return 0.0
        n_prefill = sum(n for request, n in step.work if n > 1 or not request.n_generated)
        return self._times.step_s + n_prefill * self._times.prefill_s_per_token

    def _schedule_running(self, step: _Step, budget: int) -> int:
        for request in tuple(self._running):
            if budget <= 0:
                break
            if request not in self._running:  # preempted for one before it
                continue
            budget -= self._run(step, request, budget)
        return budget

    def _run(self, step: _Step, request: Request, budget: int) -> int:
        """Extend a running request, preempting from the youngest when blocks are missing; tokens it will compute."""
        sequence, lease = _admitted(request)
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
        request.lease = None
        request.loaded_at = None

    def _schedule_waiting(self, step: _Step, budget: int, now: float) -> None:
        """Admit in order of arrival until one finds no room; those that hold blocks already go on past it."""
        full = False
        for request in tuple(self._waiting):
            if budget <= 0 or len(self._running) >= self._max_num_seqs:
                break
            if request.lease is None and not full:
                outcome = self._admit(step, request, now)
                full = outcome is Wait.NO_ROOM
                request.deferred = outcome is Wait.DEFERRED
            if request.lease is None or (request.loaded_at is not None and request.loaded_at > now):
                continue
            if request.loaded_at is not None:
                step.gpu_events += self.cache.complete_load(request.lease)
                request.loaded_at = None
            self._waiting.remove(request)
            self._running.append(request)
            budget -= self._run(step, request, budget)

    def _admit(self, step: _Step, request: Request, now: float) -> Wait | None:
        sequence = request.sequence
        if sequence is None:
            sequence = TokenSequence(
                request.prompt, block_size=self.cache.block_size, lora=request.lora, salt=request.salt
            )
            request.sequence = sequence
        admitted = self.cache.admit(sequence)
        if isinstance(admitted, Wait):
            return admitted
        request.lease, events = admitted
        step.gpu_events += events
        hit = request.lease.hit
        if hit.cpu_tokens:
            self._link_free_at = max(now, self._link_free_at) + hit.cpu_tokens * self._times.load_s_per_token
            request.loaded_at = self._link_free_at
            self.counters.loaded_blocks += hit.cpu_tokens // self.cache.block_size
        if request.cached_tokens is None:
            self._count_lookup(request, hit.gpu_blocks * self.cache.block_size, hit.cpu_tokens)
        return None

    def _count_lookup(self, request: Request, gpu_tokens: int, cpu_tokens: int) -> None:
        request.cached_tokens = gpu_tokens + cpu_tokens
        counters = self.counters
        counters.prompt_tokens += len(request.prompt)
        counters.gpu_queries += len(request.prompt)
        counters.gpu_hits += gpu_tokens
        if self.cache.cpu.capacity:
            counters.cpu_queries += len(request.prompt) - gpu_tokens
            counters.cpu_hits += cpu_tokens

    def _offload(self, step: _Step, request: Request) -> None:
        _sequence, lease = _admitted(request)
        offload = self.cache.offload(lease)
        step.cpu_events += offload.events
        if offload.chunks:
            step.offloads.append(offload)

    def _sample(self, request: Request) -> tuple[Generated, ...]:
        """The next token of a request whose every token has been computed."""
        sequence, lease = _admitted(request)
        if lease.n_computed < len(sequence):
            return ()
        token = request.output[request.n_generated]
        sequence.append(token)
        request.n_generated += 1
        self.counters.generated_tokens += 1
        finished = request.n_generated == len(request.output)
        if finished:
            self._running.remove(request)
            self._release(request)
        return (Generated(request, token, finished),)


def _admitted(request: Request) -> tuple[TokenSequence, Lease]:
    if request.sequence is None or request.lease is None:
        raise RuntimeError(f"request {request.request_id} was never admitted")
    return request.sequence, request.lease
