"""The tests' double of an API server in a process of its own, with pods of realistic size.

Use: PYTHONPATH=tests python bench/fleet/cluster_api.py

Prints its port, then performs each command of its standard input and prints `done`; ends when its standard input ends:

    put FIRST LAST       these pods are created, ready, at once
    delete FIRST LAST    these pods are deleted at once
    ready N PER_SECOND   N changes of readiness, of one pod after the other, at this rate
    unread N PER_SECOND  N changes of an annotation and a container's status that no one reads

"""

from __future__ import annotations

import argparse
import asyncio
import copy
import sys
from typing import Any

from support.api_server import ApiServerDouble

PODS = "/api/v1/namespaces/ns/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
POOL = {"spec": {"selector": {"matchLabels": {"app": "a"}}, "targetPorts": [{"number": 8000}]}}


def pod(number: int, *, with_events: bool, ready: bool = True, turn: int = 0) -> dict[str, Any]:
    """Return a pod as the API server shows one of vLLM, about 8 kB of JSON."""
    env = [{"name": f"VLLM_SETTING_{n}", "value": f"value of setting {n} of the engine"} for n in range(12)]
    mounts = [{"name": f"volume-{n}", "mountPath": f"/mnt/volume-{n}"} for n in range(6)]
    fields: dict[str, Any] = {
        f'k:{{"name":"VLLM_SETTING_{n}"}}': {".": {}, "f:name": {}, "f:value": {}} for n in range(40)
    }
    annotations = {"example.com/turn": str(turn), "example.com/network": "[{}]" * 20}
    if not with_events:
        annotations["kvatlas.io/events-port"] = ""
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kinds = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "PodScheduled")
    conditions = [{"type": "Ready", "status": str(ready), **times}]
    conditions += [{"type": kind, "status": "True", **times} for kind in kinds]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {"app": "a", "llm-d.ai/role": "decode", "pod-template-hash": "6d4cf56db6"},
            "annotations": annotations,
            "managedFields": [
                {"manager": name, "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": fields}}
                for name in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "nodeName": f"node-{number // 8}",
            "containers": [
                {
                    "name": name,
                    "image": "registry.example.com/llm/vllm:v0.24.0",
                    "args": ["--model=Qwen/Qwen3-32B", "--tensor-parallel-size=2", "--block-size=64"],
                    "env": env,
                    "volumeMounts": mounts,
                }
                for name in ("modelserver", "routing-proxy")
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": f"127.1.{number // 250}.{1 + number % 250}",
            "conditions": conditions,
            "containerStatuses": [{"name": "modelserver", "ready": ready, "restartCount": turn}],
        },
    }


class Commands:
    """Carries out the commands on the double."""

    def __init__(self, double: ApiServerDouble, *, with_events: bool) -> None:
        self._double, self._with_events = double, with_events
        self._turn = 0
        self._not_ready: set[str] = set()

    async def run(self, command: str, first: int, last: int) -> None:
        """Carry out one command with its two numbers."""
        match command:
            case "put":
                for number in range(first, last + 1):
                    self._put(number)
            case "delete":
                for number in range(first, last + 1):
                    self._double.delete(PODS, f"pod-{number}")
            case _:
                await self._change(command, n=first, per_second=last)

    async def _change(self, what: str, *, n: int, per_second: int) -> None:
        loop, n_pods = asyncio.get_running_loop(), len(self._double.objects(PODS))
        begun = loop.time()
        for turn in range(n):
            await asyncio.sleep(begun + turn / per_second - loop.time())
            self._turn += 1
            # each pod twice in a row: not ready, and ready again
            number = turn // 2 % n_pods if what == "ready" else turn % n_pods
            self._put(number, ready=what != "ready" or turn % 2 == 1)

    def _put(self, number: int, *, ready: bool = True) -> None:
        body = pod(number, with_events=self._with_events, ready=ready, turn=self._turn)
        self._double.put(PODS, f"pod-{number}", copy.copy(body))


async def serve(*, with_events: bool) -> None:
    """Serve until the standard input ends."""
    double = ApiServerDouble()
    double.put(POOLS, "pool", POOL)
    await double.start()
    print(double.url, flush=True)
    commands, loop = Commands(double, with_events=with_events), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, first, last = line.split()
        await commands.run(command, int(first), int(last))
        print("done", flush=True)
    await double.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", action="store_true", help="the pods announce KV events")
    asyncio.run(serve(with_events=parser.parse_args().events))
