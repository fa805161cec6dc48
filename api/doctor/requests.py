"""Checks of finished requests: token ids, prefixes found, responses seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .check import Check, Finding, State
from .deployment import Deployment

FEW = 20
"""Fewest requests for a judgement of shares."""

TOLERATED = 0.05
"""Share of requests with a defect that is not reported."""

FOUND_AT_LEAST = 0.1
"""Smallest share of the engines' cached tokens that must have been predicted: keys that never match predict none, keys
that match nearly all."""

KNOWN_AT_LEAST = 0.5
"""Smallest share of prompt tokens with known ids for a judgement: of other prompts engines find tokens that nobody foresees."""

CACHED_AT_LEAST = 0.05
"""Smallest cached share of prompts for a judgement."""

GOOD_AT_LEAST = 0.8
"""Smallest share of audited requests that reused what was expected."""

_BLAMELESS = ("other_rank", "event_lag", "too_early")
"""Verdicts that are no evidence against the index."""

_AUDIT = "docs/audit.md says what each verdict calls for"

_WHY_NO_PREFIX: Mapping[str, str] = {
    "no_tokenizer": "model.tokenizer: the folder of the served model, with tokenizer.json",
    "no_chat_template": "model.chat.template: the file that the engine has by --chat-template",
    "own_renderer": "model.remoteTokenizer: {url: endpoints}; the engine writes such prompts with code of its own",
    "request_template": "model.chat.trustRequestTemplate: true, where the engine has --trust-request-chat-template",
    "unknown_model": "models[].names: the name that requests have",
    "tokenize_timeout": "tokenization.threads: more, or tokenization.timeout: longer",
    "tokenizer_busy": "tokenization.threads: more",
    "too_long": "model.maxModelLen: that of the engines, if they serve longer prompts than the model's files say",
    "overload_requests": "extProc.maxPendingRequests: more, or another replica of kvatlas",
    "overload_reading": "another replica of kvatlas, or a longer tokenization.timeout: long bodies wait for the thread that reads them",
    "too_complex": "tokenization.maxReadingCost: more, if these bodies are not an attack",
    "overload_bytes": "extProc.maxHeldBytes: more, or another replica of kvatlas",
    "overload_time": "extProc.requestTimeout: longer, if clients upload slowly",
    "unknown_path": "the gateway must send bodies: processing_mode.request_body_mode FULL_DUPLEX_STREAMED or BUFFERED",
}
"""Reason, as in docs/tokenization.md -> remedy. The other reasons lie in the requests themselves."""


def _tokenized(deployment: Deployment) -> Iterator[Finding]:
    n_picks = deployment.counts.total("kvatlas_picks_total")
    if n_picks < FEW:
        yield Finding(State.UNKNOWN, f"{n_picks:.0f} requests were routed, fewer than {FEW}")
        return
    reasons = deployment.counts.by("reason", "kvatlas_prompts_without_prefix_total")
    for reason, count in reasons.items():
        share, remedy = count / n_picks, _WHY_NO_PREFIX.get(reason)
        state = State.WARN if share > TOLERATED and remedy else State.OK
        yield Finding(state, f"{count:.0f} of {n_picks:.0f} without token ids: {reason}", remedy or "")
    yield Finding(State.OK, f"{n_picks - sum(reasons.values()):.0f} of {n_picks:.0f} with token ids")


def _found(deployment: Deployment) -> Iterator[Finding]:
    counts = deployment.counts
    prompt = counts.total("kvatlas_response_prompt_tokens_total")
    cached = counts.total("kvatlas_response_cached_tokens_total")
    n_known = counts.total("kvatlas_responses_total", status="2xx")
    foreseen = counts.total("kvatlas_usable_prefix_tokens_total")
    evidence = f"engines found {cached:.0f} of {prompt:.0f} prompt tokens in their caches; foreseen were {foreseen:.0f}"
    if n_known < FEW or cached < CACHED_AT_LEAST * prompt or not cached:
        yield Finding(State.UNKNOWN, f"{evidence}; too few to judge by")
    elif counts.total("kvatlas_prompt_tokens_total") < KNOWN_AT_LEAST * prompt:
        yield Finding(State.UNKNOWN, f"{evidence}; too few prompts have token ids to judge by")
    elif foreseen < FOUND_AT_LEAST * cached:
        yield Finding(
            State.FAIL,
            evidence,
            "model.tokenizer and model.chat: those that the engine has (--tokenizer, --chat-template); "
            "compare its /tokenize with /v1/score",
        )
    else:
        yield Finding(State.OK, evidence)


def _held(deployment: Deployment) -> Iterator[Finding]:
    for _, endpoint in deployment.endpoints:
        verdicts = deployment.counts.by("verdict", "kvatlas_audited_requests_total", endpoint=endpoint.name)
        for blameless in _BLAMELESS:
            verdicts.pop(blameless, None)
        n_audited, good = sum(verdicts.values()), verdicts.pop("good", 0)
        evidence = f"{endpoint.name}: {good:.0f} of {n_audited:.0f} requests reused what was expected"
        if n_audited < FEW:
            yield Finding(State.UNKNOWN, evidence)
        elif good < GOOD_AT_LEAST * n_audited:
            shown = ", ".join(f"{verdict} {count:.0f}" for verdict, count in verdicts.items())
            yield Finding(State.WARN, f"{evidence}; {shown}", f"{_AUDIT}: {next(iter(verdicts))}")
        else:
            yield Finding(State.OK, evidence)


def _shown(deployment: Deployment) -> Iterator[Finding]:
    outcomes = deployment.counts.by("outcome", "kvatlas_requests_total")
    n_routed = sum(outcomes.get(outcome, 0) for outcome in ("completed", "routed"))
    if n_routed < FEW:
        yield Finding(State.UNKNOWN, f"{n_routed:.0f} requests were answered, fewer than {FEW}")
        return
    hidden = outcomes.get("routed", 0)
    if hidden > TOLERATED * n_routed:
        yield Finding(
            State.WARN,
            f"of {hidden:.0f} of {n_routed:.0f} requests the gateway did not show the response",
            "ext_proc filter: processing_mode: {response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, "
            "response_trailer_mode: SEND}; see deploy/envoy/duplex.yaml",
        )
    gaps = deployment.counts.by("reason", "kvatlas_responses_without_usage_total")
    absent = gaps.get("absent", 0)
    if absent > n_routed / 2:
        yield Finding(
            State.WARN,
            f"{absent:.0f} of {n_routed:.0f} answers had no token counts",
            'requests that stream: "stream_options": {"include_usage": true}; or vllm serve --enable-force-include-usage',
        )
    yield Finding(State.OK, f"{n_routed - hidden:.0f} of {n_routed:.0f} responses were shown")


def _obeyed(deployment: Deployment) -> Iterator[Finding]:
    served = deployment.counts.by("by", "kvatlas_responses_served_total")
    n_shown = sum(served.values())
    if n_shown < FEW:
        yield Finding(State.UNKNOWN, f"{n_shown:.0f} responses were shown, fewer than {FEW}")
        return
    other, untold = served.get("other", 0), served.get("untold", 0)
    if other > TOLERATED * n_shown:
        yield Finding(
            State.FAIL,
            f"{other:.0f} of {n_shown:.0f} answers came from an endpoint that kvatlas had not named",
            "the route's cluster must take the destination: override_host with x-gateway-destination-endpoint, "
            "see deploy/envoy/duplex.yaml",
        )
    if untold > TOLERATED * n_shown:
        yield Finding(
            State.WARN,
            f"of {untold:.0f} of {n_shown:.0f} answers the gateway did not tell who served them",
            "ext_proc filter: response_attributes: [upstream.address], and "
            "metadata_options: {forwarding_namespaces: {untyped: [envoy.lb]}}",
        )
    yield Finding(
        State.OK, f"{served.get('picked', 0):.0f} of {n_shown:.0f} answers came from the endpoint picked"
    )


def _learned(deployment: Deployment) -> Iterator[Finding]:
    counts = deployment.counts
    states = counts.by("state", "kvatlas_latency_costs_in_force")
    if not states:
        yield Finding(State.OK, "the policy has no cost model")
    n_seen, errors = counts.total("kvatlas_latency_observations"), counts.values("kvatlas_latency_mape")
    off = f", predictions off by at most {max(errors):.0%} in the mean" if any(errors) else ""
    is_blind = counts.total("kvatlas_picks_total") >= FEW and not n_seen
    for state, n_groups in states.items():
        groups = "1 group" if n_groups == 1 else f"{n_groups:.0f} groups"
        evidence = f"{_COSTS[state]} in {groups} of servers; {n_seen:.0f} times known{off}"
        if state == "few" and is_blind:
            yield Finding(State.WARN, evidence, _WITHOUT_TIMES)
        else:
            yield Finding(State.OK if state in ("learned", "fixed") else State.UNKNOWN, evidence)


_COSTS: Mapping[str, str] = {
    "few": "configured costs, since fewer than 30 times to first token are known,",
    "rejected": "configured costs, since learned ones do not predict better,",
    "learned": "learned costs",
    "fixed": "configured costs, which are not to be learned,",
}
"""State of costs -> words."""

_WITHOUT_TIMES = "streamed responses: `stream: true` in requests, and processing_mode.response_body_mode FULL_DUPLEX_STREAMED of the gateway"

CHECKS = (
    Check(
        "prompts-tokenized",
        "Are token ids known of all prompts?",
        "such requests are routed by load, and by the bytes of their prompts among endpoints known from routing",
        _tokenized,
    ),
    Check(
        "prefixes-found",
        "Do keys match what engines find in their caches?",
        "requests go away from the endpoints that hold their prefix",
        _found,
    ),
    Check(
        "expectations-held",
        "Do endpoints reuse what they are thought to hold?",
        "requests go to endpoints for blocks that they do not have",
        _held,
    ),
    Check(
        "costs-learned",
        "Are latency costs learned from responses?",
        "policy latency decides by the configured costs, which fit one model and GPU",
        _learned,
    ),
    Check(
        "responses-shown",
        "Does the gateway show responses with their token counts?",
        "the end of requests, first tokens and cached tokens are not known: in-flight load, latency costs and "
        "the checks of prefixes go without",
        _shown,
    ),
    Check(
        "picks-obeyed",
        "Does the gateway send requests where kvatlas says?",
        "picks change nothing, or it cannot be seen whether they do",
        _obeyed,
    ),
)
