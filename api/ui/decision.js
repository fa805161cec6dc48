// One decision in full: every endpoint with every term, and the smallest change that would have changed it.

import { call } from "./api.js";
import { bar, cell, el, setText, show, table } from "./dom.js";
import { age, clock, count, counted, percent, score, scorer } from "./format.js";
import { parts } from "./terms.js";

const dialog = document.getElementById("decision");
const title = document.getElementById("decision-title");
const body = document.getElementById("decision-body");

const MAX_TIED = 20;
let opened = 0; // so that an answer that comes late is not shown as another's

export async function openDecision(id) {
  const number = ++opened;
  setText(title, `Request ${id}`);
  body.replaceChildren(el("p.empty", {}, "Asking."));
  if (!dialog.open) show(dialog);
  let found;
  try {
    found = explained(await call(`v1/decisions/${encodeURIComponent(id)}`));
  } catch (error) {
    found = [el("p.error", { role: "alert" }, error.message)];
  }
  if (number === opened) body.replaceChildren(...found);
}

function explained(decision) {
  const stages = decision.placement?.stages ?? [];
  return [
    el("p.lead", {}, outcome(decision, stages)),
    el("ul.notes", {}, notes(decision).map((note) => el("li", {}, note))),
    stages.length ? el("h3", {}, `decode, profile ${decision.placement.profile}: ${decision.picked[0]} answers`) : null,
    endpoints(decision),
    ...stages.flatMap(stagePart),
    ...costs(decision.placement?.options ?? []),
    ...costParts(decision),
  ].filter((part) => part != null);
}

function stagePart(stage) {
  const faults = stage.faults.map(({ name, reason }) => `The answer of ${name} had to be repaired: ${reason}.`);
  const said = stage.tie ? ["A tie: chance decided.", ...faults] : faults;
  return [
    el("h3", {}, `${stage.name}, profile ${stage.profile}: ${stage.picked.join(", ")}`),
    said.length ? el("ul.notes", {}, said.map((note) => el("li", {}, note))) : null,
    endpoints(stage),
  ];
}

/** What the placement was expected to cost, and the best others, of a handler that compares costs; the chosen one first. */
function costs(options) {
  if (!options.length) return [];
  const names = Object.keys(options[0].termsMs).filter((name) => options.some(({ termsMs }) => termsMs[name]));
  const columns = [
    { name: "Placement", kind: "key" }, { name: "Total, ms", kind: "num" },
    ...names.map((name) => ({ name, kind: "num" })),
  ];
  const { node, body: rows } = table("Placements by cost, the chosen one first", columns);
  rows.append(...options.map(({ prefill, decode, totalMs, termsMs }, number) =>
    el(number ? "tr" : "tr.picked", { role: "row" },
      cell(columns[0], el("strong", {}, prefill == null ? `${decode} alone` : `${prefill} → ${decode}`)),
      cell(columns[1], count(totalMs)),
      names.map((name, at) => cell(columns[at + 2], count(termsMs[name]))))));
  return [el("h3", {}, "What it was expected to cost"), node];
}

/** What the cost of each endpoint is made of, the least first, for a scorer that expects costs. */
function costParts({ endpoints: all, picked }) {
  const names = (all.find(({ scores }) => scores.length)?.scores ?? []).filter(({ partsMs }) => partsMs).map(({ name }) => name);
  return names.flatMap((scorerName) => {
    const costs = all.flatMap(({ name, scores }) => scores.filter((each) => each.name === scorerName)
      .map(({ raw, partsMs }) => ({ name, total: raw ?? 0, partsMs })));
    const terms = Object.keys(costs[0].partsMs).filter((term) => costs.some(({ partsMs }) => Math.round(partsMs[term] ?? 0)));
    const columns = [
      { name: "Endpoint", kind: "key" }, { name: "Total, ms", kind: "num" },
      ...terms.map((name) => ({ name, kind: "num" })),
    ];
    const { node, body: rows } = table("Endpoints by cost, the least first", columns);
    rows.append(...costs.sort((a, b) => a.total - b.total).map(({ name, total, partsMs }) =>
      el(picked[0] === name ? "tr.picked" : "tr", { role: "row" },
        cell(columns[0], el("strong", {}, name)),
        cell(columns[1], count(Math.round(total))),
        terms.map((term, at) => cell(columns[at + 2], count(Math.round(partsMs[term] ?? 0)))))));
    return [el("h3", {}, `What ${scorer(scorerName)} expects it to cost`), node];
  });
}

function outcome({ time, tokens, picked, endpoints, model, placement }, stages) {
  const what = `${clock(time)}: ${counted(tokens, "prompt token")}${model ? ` for ${model}` : ""}`;
  if (placement?.lacking) return `${what}. No endpoint can do the stage ${placement.lacking}.`;
  if (!picked.length) return `${what}. Filters dropped every endpoint.`;
  const prefill = stages.find(({ name }) => name === "prefill");
  const computing = prefill ?? { picked, endpoints };
  const chosen = computing.endpoints.find(({ name }) => name === computing.picked[0]);
  const usable = chosen.prefix?.usableTokens ?? 0;
  const where = prefill ? `${picked[0]}; ${prefill.picked[0]} computes the prompt, and` : `${picked[0]}, which`;
  return `${what} went to ${where} had ${count(usable)} of them cached${tokens ? ` (${percent(usable / tokens)})` : ""}.`;
}

function notes({ tie, tied, counterfactual, noPrefixReason, cutReason, audited, faults, objective, configGeneration }) {
  const found = [`Decided by configuration ${configGeneration}${objective ? `, objective ${objective}` : ""}.`];
  if (tie) found.push(`A tie: chance decided between ${first(tied)}.`);
  if (counterfactual) {
    const { scorer: name, weight, newWeight, picks } = counterfactual;
    found.push(`${picks.join(" or ")} would have had the highest total with weight ${precise(newWeight)} in place of ${precise(weight)} for ${name}.`);
  } else if (!tie) found.push("No change of one weight would have changed it.");
  if (noPrefixReason) found.push(`The token ids are not known: ${noPrefixReason}.`);
  if (cutReason) found.push(`Only the first token ids are known: ${cutReason}.`);
  if (audited) found.push(`Audit: ${audited.verdict}; ${expectation(audited)}.`);
  for (const { name, reason } of faults) found.push(`The answer of ${name} had to be repaired: ${reason}.`);
  return found;
}

/** Names, the first ones of many: in an idle fleet all endpoints are equal. */
function first(names) {
  const more = names.length - MAX_TIED;
  return names.slice(0, MAX_TIED).join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}

function expectation({ expectedTokens, reusedTokens }) {
  const sum = (tokens) => Object.values(tokens).reduce((total, each) => total + each, 0);
  return `${count(sum(expectedTokens))} cached tokens were expected, the engine reused ${count(sum(reusedTokens))}`;
}

/** A weight with the digits that tell it from the one at which both are level. */
const precise = (weight) => Number(weight.toPrecision(4)).toString();

/** The table of the endpoints of a decision, or of one of its stages. */
function endpoints(decision) {
  const best = Math.max(...decision.endpoints.map(({ total }) => total));
  const names = decision.endpoints.find(({ scores }) => scores.length)?.scores.map(({ name }) => name) ?? [];
  const columns = [
    { name: "Endpoint", kind: "key" }, { name: "Total", kind: "total" },
    ...names.map((name) => ({ name: scorer(name), kind: "term" })),
    { name: "Cached tokens", kind: "term" }, { name: "Trust" },
  ];
  const { node, body: rows } = table("Endpoints, best first", columns);
  const ordered = [...decision.endpoints].sort((a, b) => Boolean(a.filteredBy) - Boolean(b.filteredBy) || b.total - a.total);
  rows.append(...ordered.map((endpoint) => row(endpoint, columns, decision.picked, best)));
  return node;
}

function row(endpoint, columns, picked, best) {
  const { name, total, scores, filteredBy, filterReason, prefix, trust, credit } = endpoint;
  const fill = bar();
  fill.update(parts(scores, best));
  const terms = columns.slice(2, -2);
  const [cachedColumn, trustColumn] = columns.slice(-2);
  const held = Object.entries(prefix?.tierTokens ?? {}).filter(([, tokens]) => tokens)
    .map(([tier, tokens]) => `${tier} ${count(tokens)}`).join(", ");
  return el(picked[0] === name ? "tr.picked" : "tr", { role: "row" },
    cell(columns[0], el("strong", {}, name), picked[0] === name ? el("small", {}, "picked") : null),
    filteredBy
      ? cell(columns[1], el("span", {}, `dropped by ${filteredBy}`), el("small", {}, filterReason))
      : cell(columns[1], el("span.line", {}, score(total)), fill.node),
    terms.map((column, number) => cell(column, ...term(scores[number]))),
    cell(cachedColumn, count(prefix?.usableTokens ?? 0), el("small", {}, held)),
    cell(trustColumn, trust, credit < 1 ? el("small", {}, `credit ${percent(credit)}`) : null));
}

function term(found) {
  if (!found) return ["–"];
  const input = found.raw == null ? "unknown" : `from ${Number(found.raw.toPrecision(4))}`;
  const old = found.ageSeconds == null ? "" : `, ${age(found.ageSeconds)} old`;
  return [el("span.line", {}, score(found.product)), el("small", {}, `${score(found.score)} × ${precise(found.weight)}, ${input}${old}`)];
}
