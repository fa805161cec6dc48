// The last decisions, newest first, with what won each; a request opens in full.

import { bar, cell, el, keyed, setText, table } from "./dom.js";
import { clock, count, percent, score, scorer } from "./format.js";
import { openDecision } from "./decision.js";
import { colorOf, parts, why } from "./terms.js";

const facts = document.getElementById("decisions-facts");
const legend = document.getElementById("decisions-legend");
const place = document.getElementById("decisions-table");
const COLUMNS = [
  { name: "Time", kind: "time" }, { name: "Request", kind: "key" }, { name: "Tokens", kind: "num" }, { name: "Cached", kind: "num" },
  { name: "Endpoint", kind: "server" }, { name: "Total", kind: "total" }, { name: "Why", kind: "why" },
];
let shown = null;

export function showDecisions(frame, last) {
  setText(facts, pace(frame, last));
  if (!frame.decisions.length) {
    shown = null;
    legend.replaceChildren();
    place.replaceChildren(el("p.empty", {}, frame.decisionCount
      ? "No decision is kept."
      : "No request has come yet. Decisions on requests over ext-proc appear here, unless decisions.maxCount is 0."));
    return;
  }
  if (!shown) {
    shown = table("Decisions, newest first", COLUMNS);
    shown.node.classList.add("recent");
    place.replaceChildren(shown.node);
  }
  keyed(shown.body, frame.decisions, keyOf, row);
  const names = frame.decisions[0].terms.map(({ name }) => name);
  keyed(legend, names.map((name, number) => ({ name, number })), ({ name, number }) => `${number} ${name}`, entry);
}

const keyOf = ({ requestId, time }) => `${requestId} ${time}`;

function pace(frame, last) {
  const total = `${count(frame.decisionCount)} since the start`;
  const seconds = last ? (new Date(frame.time) - new Date(last.time)) / 1000 : 0;
  if (!(seconds > 0) || frame.decisionCount < last.decisionCount) return total;
  return `${((frame.decisionCount - last.decisionCount) / seconds).toFixed(1)} a second · ${total}`;
}

function entry({ name, number }) {
  const swatch = el("span.swatch", { "aria-hidden": "true" });
  swatch.dataset.color = colorOf(number);
  return { node: el("span", {}, swatch, scorer(name)), update() {} };
}

function row() {
  const [timeColumn, requestColumn, tokensColumn, cachedColumn, endpointColumn, totalColumn, whyColumn] = COLUMNS;
  const time = el("span"), tokens = el("span"), cached = el("span"), endpoint = el("strong"), elsewhere = el("small");
  const total = el("span.line"), fill = bar(), reason = el("span"), stageReasons = el("small");
  const request = el("button.link", { type: "button", onclick: () => openDecision(request.textContent) });
  const node = el("tr", { role: "row" },
    cell(timeColumn, time), cell(requestColumn, request), cell(tokensColumn, tokens), cell(cachedColumn, cached),
    cell(endpointColumn, endpoint, elsewhere), cell(totalColumn, total, fill.node), cell(whyColumn, reason, stageReasons));
  return {
    node,
    update(decision) {
      setText(time, clock(decision.time));
      setText(request, decision.requestId);
      request.title = decision.requestId;
      setText(tokens, count(decision.tokens));
      const known = decision.usableTokens != null && decision.tokens > 0;
      setText(cached, percent(known ? decision.usableTokens / decision.tokens : null));
      setText(endpoint, decision.picked[0] ?? "nobody");
      setText(total, score(decision.total));
      const highest = Math.max(decision.total ?? 0, decision.rival?.total ?? 0);
      fill.update(parts(decision.terms, highest));
      setText(reason, why(decision));
      const stages = decision.stageReasons;
      setText(elsewhere, stages.map(({ name, picked }) => `${name} on ${picked.join(", ")}`).join("; "));
      setText(stageReasons, stages.map((stage) => `${stage.name} ${why(stage)}`).join("; "));
    },
  };
}
