"""The steps of a recording, played against a running picker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.replay.answers import DESTINATION, SCORES, answers_of
from support.replay.engines import RECORDED_PORT
from support.replay.messages import PLAIN_ANSWER, request, response
from support.replay.recordings import Json
from support.replay.running import Running
from support.replay.streams import Stream
from support.waiting import until

MAX_REPEATS = 150
"""Most times that a recorded chance is tried."""

_SAMPLE = re.compile(r"^(llm_d_epp_\S+?(?:\{.*\})?) (\S+)$", re.MULTILINE)
_PLACEMENTS = re.compile(r'^kvatlas_placements_total\{kind="(.*?)"\} (\S+)$', re.MULTILINE)
_SETTLED_S = 10.0
"""Longest wait for the requests in flight that were recorded."""

_REQUEST_ID = "00000000-0000-4000-8000-000000000001"
"""Of every request: the recordings have one for all."""


@dataclass
class Play:
    """One recording on one picker; its streams end with it.

    Attributes:
        picker: the running picker.
    """

    picker: Running
    _streams: dict[int, Stream] = field(default_factory=dict[int, Stream])

    async def step(self, step: Json) -> Json:
        """Play a step, and return it with what the picker said in place of what the reference did."""
        before = await self._counters() if "counters" in step else {}
        observed = await self._played(step)
        if "counters" in step:
            now = await self._counters()
            observed["counters"] = {name: value - before.get(name, 0) for name, value in now.items()}
        return observed

    async def placements(self) -> dict[str, int]:
        """Return the placements counted so far, by kind."""
        text = (await self.picker.get("/metrics")).decode()
        return {kind: int(float(value)) for kind, value in _PLACEMENTS.findall(text)}

    async def close(self) -> None:
        for stream in self._streams.values():
            await stream.cancel()

    async def _played(self, step: Json) -> Json:
        match step:
            case {"repeat": n}:
                picks = Counter([picks_of(await self._sent(step)) for _ in range(min(n, MAX_REPEATS))])
                return {"counts": dict(picks)}
            case {"send": _}:
                return await self._sent(step)
            case {"together": sends}:
                return {"together": await self._together(sends)}
            case {"respond": respond, "stream": number}:
                return {"answers": await self._responded(self._streams[number], respond)}
            case {"in_flight": recorded}:
                return {"in_flight": await self._settled(recorded)}
            case _:
                await self._changed(step)
                return {}

    async def _changed(self, step: Json) -> None:
        """Play a step that the picker does not answer."""
        match step:
            case {"close": number}:
                await self._closed(self._streams.pop(number), step.get("how", "end"))
            case {"set_metrics": metrics}:
                await self.picker.say(metrics)
                if None in metrics.values():  # what was said before grows old
                    await asyncio.sleep(step["wait_ms"] / 1000)
            case {"events": events}:
                await self.picker.publish(events)
            case {"wait_ms": wait_ms}:  # the reference forgets by time
                await asyncio.sleep(wait_ms / 1000)
            case _:
                raise AssertionError(f"a step that the replay does not know: {', '.join(step)}")

    async def _sent(self, step: Json) -> Json:
        stream = await self._opened(step["send"])
        observed = await self._begun(stream)
        if step.get("kept_open") and not _has_ended(observed):
            self._streams[step["stream"]] = stream
        else:
            rest = await self._finished(stream, observed)
            if not observed["answers"] and rest != ["end"]:
                observed["answers"] = answers_of(rest, stream.sent)
        return observed

    async def _together(self, sends: Sequence[Json]) -> list[Json]:
        """Send all before any has its answer, which may wait for the others."""
        streams = [await self._opened(each["send"]) for each in sends]
        begun = [await self._begun(stream) for stream in streams]
        for stream, observed in zip(streams, begun, strict=True):
            await self._finished(stream, observed)
        return begun

    async def _opened(self, send: Json) -> Stream:
        stream = Stream(self.picker.channel, request(self._here(send), _REQUEST_ID))
        await stream.send(stream.sent.messages)
        return stream

    async def _begun(self, stream: Stream) -> Json:
        sent = stream.sent
        received = await stream.answers_to(sent, "request")
        answers = answers_of(received, sent)
        observed: Json = {"answers": answers, "picked": None}
        destination = next((found for each in answers if (found := _destination(each)) is not None), None)
        if destination is not None:
            names = [self._name(address) for address in destination.split(",")]
            observed["picked"] = names[0] if len(names) == 1 else names
        scores = _scores(answers)
        if scores is not None:
            observed["scores"] = {self._name(address): score for address, score in scores.items()}
        observed["answers"] = json.loads(self._recorded(json.dumps(answers)))
        return observed

    async def _finished(self, stream: Stream, observed: Json) -> list[pb.ProcessingResponse | str]:
        """End a stream, after a response if the request has a destination; return what still came."""
        if _has_ended(observed):
            return []
        if observed["picked"] is not None:
            answer = response(PLAIN_ANSWER)
            await stream.send(answer.messages)
            await stream.answers_to(answer, "response")
        return await stream.end()

    async def _responded(self, stream: Stream, respond: Json) -> list[Json]:
        sent = response(self._here(respond))
        await stream.send(sent.messages)
        return answers_of(await stream.answers_to(sent, "response"), sent)

    @staticmethod
    async def _closed(stream: Stream, how: str) -> None:
        await (stream.cancel() if how == "cancel" else stream.end())

    async def _counters(self) -> dict[str, float]:
        text = (await self.picker.get("/metrics")).decode()
        return {name: float(value) for name, value in _SAMPLE.findall(text)}

    async def _settled(self, recorded: Mapping[str, int]) -> dict[str, int]:
        """Return the requests in flight, at once if as recorded: the picker may still be reading a cancellation."""

        async def is_as_recorded() -> bool:
            return await self._in_flight() == recorded

        with contextlib.suppress(AssertionError):
            await until(is_as_recorded, timeout_s=_SETTLED_S)
        return await self._in_flight()

    async def _in_flight(self) -> dict[str, int]:
        """Return endpoint -> requests in flight, of those that have any."""
        page = json.loads(await self.picker.get("/v1/endpoints"))
        loads = {each["name"]: each["load"]["inFlightRequests"] for each in page["endpoints"]}
        return {name: n for name, n in loads.items() if n}

    def _here(self, part: Json) -> Json:
        """Return a part of the recording with the port of these servers."""
        here: Json = json.loads(json.dumps(part).replace(":8000", f":{self.picker.engines.port}"))
        return here

    def _recorded(self, text: str) -> str:
        port = self.picker.engines.port
        for each in {int(each["port"]) for each in self.picker.recording.endpoints}:
            text = text.replace(f":{port + each - RECORDED_PORT}", f":{each}")
        return text

    def _name(self, address: str) -> str:
        """Return the name of an endpoint by `host:port`, the address if none has it."""
        recorded = self._recorded(address)
        return next(
            (
                each["name"]
                for each in self.picker.recording.endpoints
                if f"{each['address']}:{each['port']}" == recorded
            ),
            recorded,
        )


def _has_ended(observed: Json) -> bool:
    return bool(observed["answers"]) and "stream" in observed["answers"][-1]


def picks_of(observed: Json) -> str:
    """Return the picked endpoints as `any_of` and `counts` have them."""
    picked: str | list[str] | None = observed["picked"]
    return ",".join(picked) if isinstance(picked, list) else str(picked)


def _destination(answer: Json) -> str | None:
    for kind in ("request_headers", "request_body"):
        if DESTINATION in answer.get(kind, {}).get("set", {}):
            destination: str = answer[kind]["set"][DESTINATION]
            return destination
    return None


def _scores(answers: Sequence[Json]) -> dict[str, float] | None:
    """Take the emitted scores out of the answers, None if there are none."""
    for answer in answers:
        scores: dict[str, float] | None = (
            answer.get("dynamic_metadata", {}).get("envoy.lb", {}).pop(SCORES, None)
        )
        if scores is not None:
            return scores
    return None
