// Weights: sliders that show at once how the kept decisions would have gone, and that change nothing before it is confirmed.

import { call } from "./api.js";
import { openDecision } from "./decision.js";
import { cell, confirmed, el, keyed, setText, table } from "./dom.js";
import { clock, count, counted, percent, scorer } from "./format.js";

const facts = document.getElementById("weights-facts");
const sliders = document.getElementById("weights-sliders");
const outcome = document.getElementById("weights-outcome");
const picksPlace = document.getElementById("weights-picks");
const moved = document.getElementById("weights-moved");
const apply = document.getElementById("weights-apply");
const reset = document.getElementById("weights-reset");
const PAUSE_MS = 200; // between the last move of a slider and the question
const COLUMNS = [
  { name: "Endpoint", kind: "key" }, { name: "Picked", kind: "num" }, { name: "Would be", kind: "num" },
  { name: "Change", kind: "num" },
];
const REST = "Move a slider to see how the kept decisions would have gone. Nothing changes before you apply it.";

let inForce = null; // { generation, weights: [{ name, scorer, weight }] }
let chosen = {}; // name -> weight, of those that differ
let isAsking = false;
let timer = null;
let picks = null;

/** Looks at the weights again when another configuration is in force. */
export async function followWeights(generation) {
  if (inForce?.generation === generation || isAsking) return;
  isAsking = true;
  try {
    inForce = await call("v1/weights");
    const known = new Set(inForce.weights.map(({ name }) => name));
    chosen = Object.fromEntries(Object.entries(chosen).filter(([name]) => known.has(name)));
    keyed(sliders, inForce.weights, ({ name }) => name, slider);
    changed();
  } catch (error) {
    setText(facts, error.message);
  } finally {
    isAsking = false;
  }
}

function slider({ name }) {
  const id = `weight-${name}`;
  const range = el("input", { type: "range", min: "0", step: "0.05", id, "aria-describedby": "weights-outcome" });
  const figure = el("output", { for: id }), before = el("small");
  range.addEventListener("input", () => {
    const weight = Number(range.value);
    const present = inForce.weights.find((each) => each.name === name).weight;
    if (weight === present) delete chosen[name];
    else chosen[name] = weight;
    setText(figure, String(weight));
    changed();
  });
  return {
    node: el("li", {}, el("label", { for: id }, scorer(name)), range, figure, before),
    update({ weight, scorer: full }) {
      const value = chosen[name] ?? weight;
      range.max = String(Math.max(5, Math.ceil(2 * weight), Math.ceil(value)));
      range.value = String(value);
      range.title = full;
      setText(figure, String(value));
      setText(before, `in force ${weight}`);
    },
  };
}

function changed() {
  const isOther = Object.keys(chosen).length > 0;
  setText(facts, `configuration ${count(inForce.generation)}`);
  apply.disabled = reset.disabled = !isOther;
  clearTimeout(timer);
  if (isOther) timer = setTimeout(ask, PAUSE_MS);
  else rest();
}

function rest() {
  picks = null;
  setText(outcome, REST);
  picksPlace.replaceChildren();
  moved.replaceChildren();
}

async function ask() {
  const asked = JSON.stringify(chosen);
  try {
    const found = await call("v1/weights/preview", { method: "POST", body: chosen, insist: true });
    if (asked === JSON.stringify(chosen)) showPreview(found);
  } catch (error) {
    setText(outcome, error.message);
  }
}

function showPreview(found) {
  if (!found.decisions) {
    setText(outcome, found.skipped ? "Weights do not tell where the kept decisions went." : "No decision is kept to try them on.");
    return;
  }
  setText(outcome, told(found));
  if (!picks) {
    picks = table("Picks before and after", COLUMNS);
    picksPlace.replaceChildren(picks.node);
  }
  keyed(picks.body, found.endpoints, ({ name }) => name, pickRow);
  moved.replaceChildren(...found.moved.map(({ decision, leaders }) => el("li", {},
    `${clock(decision.time)} `,
    el("button.link", { type: "button", onclick: () => openDecision(decision.requestId) }, decision.requestId),
    ` ${decision.picked[0]} → ${leaders.join(" or ")}`)));
}

function told({ decisions, changed: n, skipped, tokens, usableTokensBefore, usableTokensAfter }) {
  const share = `${count(n)} of the last ${counted(decisions, "decision")} (${percent(n / decisions, 1)}) would have gone elsewhere`;
  const cached = tokens
    ? `; of their prompt tokens ${percent(usableTokensAfter / tokens, 1)} would have been cached there in place of ${percent(usableTokensBefore / tokens, 1)}` : "";
  return `${share}${cached}.${skipped ? ` ${counted(skipped, "decision")} did not go by weights.` : ""}`;
}

function pickRow() {
  const texts = COLUMNS.map(() => el("span"));
  const [name, before, after, change] = texts;
  return {
    node: el("tr", { role: "row" }, COLUMNS.map((column, number) => cell(column, texts[number]))),
    update(endpoint) {
      const gain = Math.round(10 * (endpoint.after - endpoint.before)) / 10;
      setText(name, endpoint.name);
      setText(before, count(endpoint.before));
      setText(after, (Math.round(10 * endpoint.after) / 10).toLocaleString("en"));
      setText(change, gain ? `${gain > 0 ? "+" : "−"}${Math.abs(gain).toLocaleString("en")}` : "0");
    },
  };
}

reset.addEventListener("click", () => {
  chosen = {};
  keyed(sliders, inForce.weights, ({ name }) => name, slider);
  changed();
});

apply.addEventListener("click", async () => {
  const asked = { ...chosen };
  const present = new Map(inForce.weights.map(({ name, weight }) => [name, weight]));
  const lines = Object.entries(asked).map(([name, weight]) => `${name}: ${present.get(name)} → ${weight}`);
  if (!await confirmed("Apply these weights?", lines, "Apply")) return;
  try {
    const { generation, changes } = await call("v1/weights", { method: "PUT", body: asked, insist: true });
    chosen = {};
    inForce = null;
    await followWeights(generation);
    setText(outcome, `Configuration ${count(generation)} is in force: ${changes.join(", ") || "nothing differs"}.`);
  } catch (error) {
    setText(outcome, error.message);
  }
});
