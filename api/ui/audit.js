// Is the index right? What engines reused beside what was expected of them.

import { call } from "./api.js";
import { bar, cell, el, keyed, setText, table } from "./dom.js";
import { count, counted, percent } from "./format.js";
import { every } from "./poll.js";

const facts = document.getElementById("audit-facts");
const place = document.getElementById("audit-table");
const COLUMNS = [
  { name: "Endpoint", kind: "key" }, { name: "Requests", kind: "num" }, { name: "As expected", kind: "total" },
  { name: "Expected", kind: "num" }, { name: "Reused", kind: "num" },
  { name: "Not reused", kind: "num" }, { name: "Unforeseen", kind: "num" }, { name: "Credit", kind: "num" },
  { name: "Otherwise", kind: "why" },
];
let shown = null;

export function beginAudit() {
  every(10, () => call("v1/audit"), showAudit, (message) => setText(facts, message));
}

function showAudit({ endpoints }) {
  if (!endpoints.length) {
    shown = null;
    setText(facts, "");
    place.replaceChildren(el("p.empty", {}, "No engine has told yet what it reused. It takes responses that the gateway shows, ",
      el("code", {}, "--enable-prompt-tokens-details"), " on vLLM, and ", el("code", {}, "stream_options: {\"include_usage\": true}"),
      " in streams."));
    return;
  }
  if (!shown) {
    shown = table("Audit", COLUMNS);
    place.replaceChildren(shown.node);
  }
  const requests = sum(endpoints.map((each) => each.requests));
  const good = sum(endpoints.map(({ verdicts }) => verdicts.good ?? 0));
  setText(facts, `${count(good)} of ${counted(requests, "request")} reused what was expected, ${percent(good / requests, 1)}`);
  keyed(shown.body, endpoints, ({ name }) => name, row);
}

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

function row() {
  const texts = COLUMNS.map(() => el("span"));
  const [name, requests, good, expected, reused, over, under, credit, otherwise] = texts;
  const fill = bar();
  const node = el("tr", { role: "row" }, COLUMNS.map((column, number) => cell(column, texts[number])));
  good.className = "line";
  good.after(fill.node);
  name.className = "strong";
  return {
    node,
    update(endpoint) {
      const share = (endpoint.verdicts.good ?? 0) / endpoint.requests;
      setText(name, endpoint.name);
      setText(requests, count(endpoint.requests));
      setText(good, percent(share, 1));
      fill.update([{ key: "good", color: "good", share }, { key: "bad", color: "bad", share: 1 - share }]);
      setText(expected, count(sum(Object.values(endpoint.expectedTokens))));
      setText(reused, count(sum(Object.values(endpoint.reusedTokens))));
      setText(over, count(endpoint.overTokens));
      setText(under, count(endpoint.underTokens));
      setText(credit, percent(endpoint.credit));
      setText(otherwise, reasons(endpoint.verdicts));
    },
  };
}

function reasons(verdicts) {
  const others = Object.entries(verdicts).filter(([verdict, n]) => verdict !== "good" && n);
  return others.sort((a, b) => b[1] - a[1]).map(([verdict, n]) => `${verdict.replaceAll("_", " ")} ${count(n)}`).join(", ") || "–";
}
