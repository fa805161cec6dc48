"""Checks of what a cluster provides: endpoints, and the leader of several replicas."""

from __future__ import annotations

from collections.abc import Iterator

from ...fleet.kubernetes.cluster import Cluster
from ...fleet.kubernetes.problems import LEASES, Problem
from .check import Check, Finding, State
from .deployment import Deployment


def _followed(deployment: Deployment) -> Iterator[Finding]:
    cluster = deployment.cluster
    if cluster is None or not deployment.config.endpoints.kubernetes.is_on:
        yield Finding(State.OK, "endpoints are not looked for in a cluster")
        return
    problems = [each for each in cluster.problems() if each.kind != LEASES]
    yield from map(_finding, problems)
    if absent := cluster.absent_pool:
        yield Finding(
            State.FAIL,
            f"there is no {absent}",
            "the pool itself, or --pool-name, --pool-namespace and --pool-group",
        )
    elif not any(each.is_severe for each in problems):
        yield _served(deployment, cluster)


def _served(deployment: Deployment, cluster: Cluster) -> Finding:
    n_pods = round(deployment.counts.total("kvatlas_kubernetes_objects", kind="pods"))
    n_endpoints = len(deployment.fleet) if deployment.fleet is not None else 0
    if not n_pods and not cluster.is_synced:
        return Finding(State.UNKNOWN, "the pool and its pods are still being read")
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


def _elected(deployment: Deployment) -> Iterator[Finding]:
    cluster = deployment.cluster
    if cluster is None or not deployment.config.leader_election.enabled:
        yield Finding(State.OK, "no leader is elected: every replica serves")
        return
    problems = [each for each in cluster.problems() if each.kind == LEASES]
    for problem in problems:
        yield _finding(problem)
        yield Finding(State.FAIL, cluster.leader)
    if not problems:
        yield Finding(State.OK, cluster.leader)


def _finding(problem: Problem) -> Finding:
    if problem.is_expected:
        return Finding(State.OK, problem.evidence)
    return Finding(State.FAIL if problem.is_severe else State.WARN, problem.evidence, problem.remedy)


CHECKS = (
    Check(
        "cluster-followed",
        "Is what the cluster says followed, and are servers found in it?",
        "requests get 503, or go to servers as they last were known",
        _followed,
    ),
    Check(
        "leader-elected",
        "Can a leader be elected?",
        "no replica takes requests, or nobody follows a leader that dies",
        _elected,
    ),
)
