// What is misconfigured: the checks that are not well, each with what shows it, what it does, and the line that mends it.

import { call } from "./api.js";
import { el, keyed, setData, setText } from "./dom.js";
import { counted } from "./format.js";
import { every } from "./poll.js";

const facts = document.getElementById("doctor-facts");
const link = document.getElementById("doctor-link");
const again = document.getElementById("doctor-again");
const problems = document.getElementById("doctor-problems");
const rest = document.getElementById("doctor-rest");
const restTitle = document.getElementById("doctor-rest-title");
const restList = document.getElementById("doctor-rest-list");
const ORDER = ["fail", "warn", "unknown", "ok"];

export function beginDoctor() {
  const ask = every(30, () => call("v1/doctor"), showDoctor, (message) => setText(facts, message));
  again.addEventListener("click", ask);
}

function showDoctor({ checks }) {
  const ordered = [...checks].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
  const wrong = ordered.filter(({ state }) => state === "fail" || state === "warn");
  const others = ordered.filter(({ state }) => state !== "fail" && state !== "warn");
  const n = (state) => checks.filter((each) => each.state === state).length;
  const told = [["fail", "failure"], ["warn", "warning"]].filter(([state]) => n(state)).map(([state, noun]) => counted(n(state), noun));
  setText(facts, told.join(", ") || "Nothing is wrong that can be seen.");
  setText(link, told.length ? `Doctor: ${told.join(", ")}` : "Doctor");
  keyed(problems, wrong, ({ name }) => name, problem);
  rest.hidden = !others.length;
  setText(restTitle, `${counted(n("ok"), "check")} well, ${n("unknown")} with nothing to see yet`);
  keyed(restList, others, ({ name }) => name, quiet);
}

function problem() {
  const name = el("strong"), state = el("span.chip"), asks = el("p"), effect = el("p.hint");
  const evidence = el("ul.notes"), remedies = el("div");
  const node = el("li.problem", {}, el("p.line", {}, name, state), asks, evidence, effect,
    el("p.hint", {}, "What mends it:"), remedies);
  return {
    node,
    update(check) {
      node.dataset.name = check.name;
      setText(name, check.name);
      setText(state, check.state);
      setData(state, "state", check.state);
      setText(asks, check.asks);
      setText(effect, check.effect ? `Effect: ${check.effect}.` : "");
      const lines = check.more ? [...check.evidence, `and ${check.more} more`] : check.evidence;
      keyed(evidence, lines, (line) => line, (line) => ({ node: el("li", {}, line), update() {} }));
      keyed(remedies, check.remedies, (line) => line, (line) => ({ node: el("pre", { tabindex: "0" }, line), update() {} }));
    },
  };
}

function quiet() {
  const name = el("span"), state = el("span.chip"), evidence = el("small");
  return {
    node: el("li", {}, el("span.line", {}, name, state), evidence),
    update(check) {
      setText(name, check.asks);
      setText(state, check.state);
      setData(state, "state", check.state);
      setText(evidence, check.evidence[0] ?? "");
    },
  };
}
