// The policy in force, what the other one would gain on this traffic, and the change to it.

import { call } from "./api.js";
import { confirmed, el, setText } from "./dom.js";
import { count, counted, percent } from "./format.js";
import { every } from "./poll.js";

const sliders = document.getElementById("weights-controls");
const line = document.getElementById("policy-line");
const costs = document.getElementById("policy-costs");
const gain = document.getElementById("policy-gain");
const buttons = document.getElementById("policy-buttons");
const OTHER = { weights: "latency", latency: "weights", plugins: "latency" };
const MS = (seconds) => `${Math.round(1000 * seconds).toLocaleString("en")} ms`;

let inForce = null; // { generation, policy, costs }
let isAsking = false;
let look = null; // asks for the shadow out of turn
let lookAtCosts = null;

/** Looks at the policy again when another configuration is in force. */
export async function followPolicy(generation) {
  if (inForce?.generation === generation || isAsking) return;
  isAsking = true;
  try {
    inForce = await call("v1/policy");
    look ??= every(5, () => call("v1/shadow"), showShadow, (message) => setText(gain, message));
    lookAtCosts ??= every(5, () => call("v1/policy"), showCosts, (message) => setText(line, message));
    look();
  } catch (error) {
    setText(line, error.message);
  } finally {
    isAsking = false;
  }
}

/** What the cost model has learned, a sentence for each group of endpoints. */
function showCosts(found) {
  const said = found.costs.map(({ group, says }) => (group ? `${group}: ${says}` : says));
  if (said.join() === [...costs.children].map((each) => each.textContent).join()) return;
  costs.replaceChildren(...said.map((each) => el("li", {}, each)));
}

function showShadow(shadow) {
  const { policy } = inForce, other = OTHER[policy];
  setText(line, policy === "plugins" ? "Policy: plugins of the configuration" : `Policy: ${policy}`);
  sliders.hidden = policy === "latency";
  setText(gain, told(shadow, other));
  const isCompared = shadow.policy === other;
  const wanted = [
    isCompared ? ["Switch to " + other, () => change(other)] : ["Compare " + other, () => set("v1/shadow", { policy: other })],
    ...(shadow.policy ? [["Stop comparing", () => set("v1/shadow", { policy: null })]] : []),
  ];
  if (wanted.map(([name]) => name).join() === [...buttons.children].map((each) => each.textContent).join()) return;
  buttons.replaceChildren(...wanted.map(([name, onclick]) => el("button", { type: "button", onclick }, name)));
}

function told({ policy, file, refusal, requests, disagreement, ttftGainSeconds: gained, liveTtftSeconds: now,
  shadowTtftSeconds: then }, other) {
  const name = policy ?? file;
  if (!name) return `Would ${other} be quicker on your traffic? A comparison changes no routing.`;
  if (refusal) return `${name} does not decide: ${refusal}`;
  if (!disagreement) return `${name} is compared; no request was yet.`;
  const compared = counted(requests.agreed + requests.disagreed, "request");
  const share = `${name} would pick another endpoint for ${percent(disagreement.share, 1)} of ${compared}`;
  if (!gained) return `${share}. Its gain is not known yet: that takes more streamed responses.`;
  const margin = gained.margin == null ? "" : ` ± ${count(Math.round(1000 * gained.margin))}`;
  const ends = gained.mean >= 0 ? "sooner" : "later";
  return `${share}. Expected first token: ${MS(now.mean)} now, ${MS(then.mean)} with ${name}, `
    + `${count(Math.abs(Math.round(1000 * gained.mean)))}${margin} ms ${ends}.`;
}

async function change(policy) {
  if (await confirmed(`Switch to ${policy}?`, [`policy: ${inForce.policy} → ${policy}`], "Switch")) {
    await set("v1/policy", { policy });
  }
}

async function set(path, body) {
  try {
    await call(path, { method: "PUT", body, insist: true });
    inForce = await call("v1/policy");
    look();
  } catch (error) {
    setText(gain, error.message);
  }
}
