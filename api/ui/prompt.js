// Where a prompt is cached: what each endpoint holds of it in each tier, as figures and as a strip of blocks.

import { call } from "./api.js";
import { el, setText } from "./dom.js";
import { count, counted, percent, score } from "./format.js";

const form = document.getElementById("prompt-form");
const input = document.getElementById("prompt-input");
const model = document.getElementById("prompt-model");
const understood = document.getElementById("prompt-understood");
const lead = document.getElementById("prompt-lead");
const answerPlace = document.getElementById("prompt-answer");
const MAX_CELLS = 160; // more blocks than this are too narrow to be told apart
let sizes = new Map();
let hear;
const heard = new Promise((resolve) => { hear = resolve; });

/** Ask about prompts without what the first frame would say: none comes soon. */
export const waitNoLonger = () => hear();

/** Endpoints' block sizes, for prompts that are asked about from now on; and a model's name where none was given. */
export function rememberFleet({ endpoints, decisions }) {
  sizes = new Map(endpoints.map(({ name, publishers }) => [name, publishers.find((each) => each.blockSize)?.blockSize]));
  if (!model.value && !model.dataset.touched && decisions.length) model.value = decisions[0].model;
  hear();
}

/** What was pasted: a whole request, its messages, or text. */
export function question(text) {
  try {
    const given = JSON.parse(text);
    const messages = Array.isArray(given) ? given : given.messages;
    if (Array.isArray(messages) && messages.length && messages.every((each) => each && typeof each.role === "string")) {
      return { told: counted(messages.length, "chat message"), model: given.model, body: { messages } };
    }
    if (typeof given.prompt === "string") return { told: "the prompt of a request", model: given.model, body: { prompt: given.prompt } };
  } catch {
    // no JSON: text
  }
  return { told: text ? "text" : "", body: { prompt: text } };
}

model.addEventListener("input", () => { model.dataset.touched = "yes"; });
input.addEventListener("input", () => {
  const { told } = question(input.value.trim());
  setText(understood, told && `Understood as ${told}.`);
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const asked = question(input.value.trim());
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    if (!asked.model) await heard; // prompts without token ids are known by model
    const body = { ...asked.body, model: asked.model ?? model.value };
    showAnswer(await call("v1/score", { method: "POST", body, insist: true }));
  } catch (error) {
    showNothing(error.message);
  } finally {
    button.disabled = false;
  }
});

function showNothing(why) {
  setText(lead, "");
  answerPlace.replaceChildren(el("p.error", { role: "alert" }, why));
}

function showAnswer({ tokens, blocks, picked, endpoints, noPrefixReason, cutReason }) {
  if (noPrefixReason && !blocks) return showNothing(`Its token ids cannot be known here: ${noPrefixReason}.`);
  if (!tokens) return showNothing("It has no tokens.");
  const ordered = [...endpoints].sort((a, b) => usable(b) - usable(a) || a.name.localeCompare(b.name));
  const tiers = [...new Set(ordered.flatMap(({ prefix }) => Object.keys(prefix?.tierTokens ?? {})))];
  const limits = [
    noPrefixReason && ` Its token ids are not known (${noPrefixReason}), so only endpoints without events are matched, by its bytes.`,
    cutReason && ` Only its first token ids are known (${cutReason}).`,
  ];
  setText(lead, told(tokens, blocks, picked, ordered[0]) + limits.filter(Boolean).join(""));
  answerPlace.replaceChildren(
    el("div.legend", {}, tiers.map((tier, number) => el("span", {}, swatch(number), tier))),
    heat(ordered, tokens, blocks),
    el("ul.strips", {}, ordered.map((endpoint) => strip(endpoint, { tokens, blocks, tiers, picked }))));
}

const usable = ({ prefix }) => prefix?.usableTokens ?? 0;

function told(tokens, blocks, picked, best) {
  const what = `${counted(tokens, "token")}${blocks ? `, ${counted(blocks, "full block")}` : ""}. `;
  const most = usable(best)
    ? `${best.name} can reuse most of it, ${counted(usable(best), "token")} (${percent(usable(best) / tokens)}).`
    : "Nobody can reuse any of it.";
  return `${what}${most}${picked.length ? ` A request would go to ${picked[0]} now.` : ""}`;
}

function swatch(number) {
  const node = el("span.swatch", { "aria-hidden": "true" });
  node.dataset.color = `tier-${Math.min(number, 3)}`;
  return node;
}

/** Tokens of a prefix up to the end of the union of all tiers. */
function reach({ name, prefix }, tokens, blocks) {
  const n = (prefix?.runs ?? []).reduce((sum, run) => sum + run.blocks, 0);
  return n * sizeOf(name, tokens, blocks);
}

const sizeOf = (name, tokens, blocks) => sizes.get(name) ?? (blocks ? tokens / blocks : 1);

/** How many endpoints hold each part of the prompt. */
function heat(endpoints, tokens, blocks) {
  const ends = endpoints.map((endpoint) => reach(endpoint, tokens, blocks));
  const edges = [...new Set([...ends.filter((end) => end > 0), tokens])].sort((a, b) => a - b);
  const parts = edges.map((end, number) => {
    const begin = number ? edges[number - 1] : 0;
    return { begin, end, holders: ends.filter((each) => each >= end).length };
  });
  const words = parts.map(({ begin, end, holders }) => `tokens ${count(begin + 1)} to ${count(end)} on ${counted(holders, "endpoint")}`);
  const track = el("span.heat", { role: "img", "aria-label": `Whole fleet: ${words.join(", ")}` });
  for (const { begin, end, holders } of parts) {
    const piece = el("span");
    piece.style.setProperty("width", `${(100 * (end - begin)) / tokens}%`);
    piece.style.setProperty("--heat", `${Math.round((100 * holders) / endpoints.length)}%`);
    track.append(piece);
  }
  const shared = parts.map(({ holders }) => holders);
  return el("div.fleet-heat", {}, el("span", {}, "Fleet"), track, el("small", {}, `held by ${shared.join(", ")} of ${endpoints.length}`));
}

function strip(endpoint, { tokens, blocks, tiers, picked }) {
  const { name, prefix, total, filteredBy } = endpoint;
  const size = sizeOf(name, tokens, blocks);
  const lanes = tiers.map((tier, number) => lane(tier, number, prefix, size, tokens));
  const track = el("span.lanes", { role: "img", "aria-label": alternative(endpoint, tiers, size, blocks) }, lanes);
  const n = tokens / size;
  if (n <= MAX_CELLS) {
    track.classList.add("cells");
    track.style.setProperty("--cell", `${100 / n}%`);
  }
  const figures = tiers.map((tier) => `${tier} ${count(prefix?.tierTokens[tier] ?? 0)}`).join(" · ");
  return el("li", { "data-name": name },
    el("span.who", {}, el("strong", {}, name), picked[0] === name ? el("small", {}, "would take it") : null),
    track,
    el("span.figures", {}, el("span", {}, `${count(usable(endpoint))} reusable, ${percent(usable(endpoint) / tokens)}`),
      el("small", {}, figures), el("small", {}, filteredBy ? `dropped by ${filteredBy}` : `total ${score(total)}`)));
}

/** A tier's gap-free prefix, and the runs in which it carries the union on from other tiers. */
function lane(tier, number, prefix, size, tokens) {
  const node = el("span.lane");
  const pieces = [[0, prefix?.tierTokens[tier] ?? 0]];
  let at = 0;
  for (const run of prefix?.runs ?? []) {
    if (run.tier === tier) pieces.push([at, at + run.blocks * size]);
    at += run.blocks * size;
  }
  for (const [begin, end] of pieces.filter(([begin, end]) => end > begin)) {
    const piece = el("span");
    piece.dataset.color = `tier-${Math.min(number, 3)}`;
    piece.style.setProperty("left", `${(100 * begin) / tokens}%`);
    piece.style.setProperty("width", `${(100 * (end - begin)) / tokens}%`);
    node.append(piece);
  }
  return node;
}

function alternative({ name, prefix }, tiers, size, blocks) {
  const held = tiers.map((tier) => `${tier} the first ${Math.round((prefix?.tierTokens[tier] ?? 0) / size)} of ${blocks} blocks`);
  const runs = (prefix?.runs ?? []).map((run) => `${run.blocks} in ${run.tier}`).join(", then ");
  return `${name}: ${held.join(", ")}; together ${runs || "none"}`;
}
