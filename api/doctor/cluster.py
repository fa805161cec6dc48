"""Checks of endpoints that a cluster provides."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Check, Finding, State
from .deployment import Deployment


def _followed(deployment: Deployment) -> Iterator[Finding]:
    kubernetes = deployment.config.endpoints.kubernetes
    if not kubernetes.is_on:
        yield Finding(State.OK, "endpoints are not looked for in a cluster")
    elif kubernetes.inference_pool and not _is_current(deployment, "inferencepools"):
        yield _lost(deployment, "inferencepools")
    elif kubernetes.inference_pool and not _known(deployment, "inferencepools"):
        yield Finding(
            State.FAIL,
            f"there is no InferencePool {kubernetes.inference_pool}",
            "the pool itself, or --pool-name and --pool-namespace",
        )
    elif not _is_current(deployment, "pods"):
        yield _lost(deployment, "pods")
    else:
        yield _served(deployment)


def _served(deployment: Deployment) -> Finding:
    n_pods = _known(deployment, "pods")
    n_endpoints = len(deployment.fleet) if deployment.fleet is not None else 0
    if not n_pods:
        return Finding(
            State.FAIL,
            "no pod has the labels that are looked for",
            "the pool's selector, or the labels of the servers' pods",
        )
    if not n_endpoints:
        return Finding(
            State.FAIL,
            f"none of {n_pods} pods serves",
            "kubectl get pods: they have to be Ready; llm-d.ai/active-ports has to name a target port",
        )
    return Finding(State.OK, f"{n_pods} pods are followed, and {n_endpoints} endpoints found")


def _lost(deployment: Deployment, kind: str) -> Finding:
    reasons = deployment.counts.by("reason", "kvatlas_kubernetes_failures_total", kind=kind)
    failures = ", ".join(f"{reason} {n:.0f}" for reason, n in reasons.items()) or "none"
    return Finding(
        State.FAIL,
        f"{kind}: not followed; failures: {failures}",
        "the log names what the API server refuses: a Role with list and watch, the CRD, or the way to the server",
    )


def _is_current(deployment: Deployment, kind: str) -> bool:
    return deployment.counts.total("kvatlas_kubernetes_current", kind=kind) == 1


def _known(deployment: Deployment, kind: str) -> int:
    return round(deployment.counts.total("kvatlas_kubernetes_objects", kind=kind))


CHECKS = (
    Check(
        "cluster-followed",
        "Is what the cluster says followed, and are servers found in it?",
        "requests get 503, or go to servers as they last were known",
        _followed,
    ),
)
