// The fleet: what each endpoint holds in each tier, how far that is believed, and its load.

import { bar, cell, el, keyed, setData, setText, table } from "./dom.js";
import { age, count, counted, percent } from "./format.js";

const facts = document.getElementById("fleet-facts");
const place = document.getElementById("fleet-table");
const TRUST = ["live", "replaying", "partial", "stale", "dark"]; // best first
const MEANING = {
  live: "every event was applied",
  replaying: "lost events are being fetched",
  partial: "some events are lost for good",
  stale: "the connection to its events is lost",
  dark: "nothing was heard yet",
  none: "it has no event stream",
};
let shown = null;

export function showFleet({ endpoints, endpointCount }) {
  if (!endpoints.length) {
    shown = null;
    place.replaceChildren(el("p.empty", {}, "No endpoint is there. ",
      el("code", {}, "endpoints.static"), ", ", el("code", {}, "endpoints.file"), " or ",
      el("code", {}, "endpoints.kubernetes"), " says where they are."));
    setText(facts, "");
    return;
  }
  const tiers = [...new Set(endpoints.flatMap((endpoint) => endpoint.tiers.map((tier) => tier.name)))];
  if (shown?.tiers.join() !== tiers.join()) {
    shown = { tiers, ...grid(tiers) };
    place.replaceChildren(shown.node);
  }
  keyed(shown.body, endpoints, (endpoint) => endpoint.name, () => row(shown.columns, tiers));
  setText(facts, tell(endpoints, endpointCount));
}

function tell(endpoints, total) {
  const live = endpoints.filter((endpoint) => trustOf(endpoint) === "live").length;
  const waiting = endpoints.reduce((sum, { load }) => sum + (load?.waiting ?? 0), 0);
  const isPart = total > endpoints.length; // then the figures are of those that are shown
  const all = isPart ? `the first ${count(endpoints.length)} of ${counted(total, "endpoint")}` : counted(total, "endpoint");
  return `${all} · ${count(live)}${isPart ? " of these" : ""} live · ${counted(waiting, "request")} waiting${isPart ? " there" : ""}`;
}

function grid(tiers) {
  const columns = [
    { name: "Endpoint", kind: "key" }, { name: "Trust" },
    ...tiers.map((tier, number) => ({ name: `${tier} blocks`, kind: "tier", color: `tier-${Math.min(number, 3)}` })),
    { name: "Waiting", kind: "num" }, { name: "Running", kind: "num" }, { name: "KV used", kind: "num" },
    { name: "Last event", kind: "num.event" },
  ];
  return { columns, ...table("Endpoints", columns) };
}

function row(columns, tiers) {
  const [nameColumn, trustColumn] = columns;
  const [waitingColumn, runningColumn, usedColumn, eventColumn] = columns.slice(-4);
  const name = el("strong"), address = el("small"), trust = el("span.chip"), note = el("small.note");
  const waiting = el("span"), running = el("span"), used = el("span"), event = el("span");
  const cells = tiers.map((_, number) => tierCell(columns[2 + number]));
  const node = el("tr", { role: "row" },
    cell(nameColumn, name, address), cell(trustColumn, trust, note), cells.map((each) => each.node),
    cell(waitingColumn, waiting), cell(runningColumn, running), cell(usedColumn, used), cell(eventColumn, event));
  return {
    node,
    update(endpoint) {
      setText(name, endpoint.name);
      const role = endpoint.labels["llm-d.ai/role"];
      setText(address, (endpoint.address ?? "takes no requests") + (role == null ? "" : ` · ${role}`));
      const state = trustOf(endpoint);
      setText(trust, state === "none" ? "no events" : state);
      setData(trust, "state", state);
      trust.title = MEANING[state];
      setText(note, noteOf(endpoint));
      tiers.forEach((tier, number) => cells[number].update(endpoint.tiers.find((each) => each.name === tier)));
      setText(waiting, count(endpoint.load?.waiting));
      setText(running, count(endpoint.load?.running));
      setText(used, percent(endpoint.load?.kvUtilization));
      setText(event, lastEvent(endpoint));
    },
  };
}

function tierCell(column) {
  const held = el("span"), of = el("small"), fill = bar();
  const node = cell(column, el("span.line", {}, held, of), fill.node);
  return {
    node,
    update(tier) {
      setText(held, tier?.dark ? "not told" : count(tier?.residencies));
      const share = tier?.capacity ? tier.residencies / tier.capacity : null;
      setText(of, share == null ? tier?.source ?? "" : `of ${count(tier.capacity)}, ${percent(share)}`);
      held.title = tier?.advice ?? "";
      fill.node.hidden = share == null;
      fill.update(share == null ? [] : [{ key: column.color, color: column.color, share }]);
    },
  };
}

function trustOf({ publishers }) {
  const states = publishers.filter(({ events }) => events != null).map(({ trust }) => TRUST.indexOf(trust));
  return states.length ? TRUST[Math.max(...states)] : "none";
}

/** What is wrong with reading its load, empty where all is well. */
function noteOf({ load, scrape }) {
  if (scrape?.failing) return "its metrics cannot be read";
  return load || !scrape ? "" : "load unknown";
}

function lastEvent({ publishers }) {
  const ages = publishers.map(({ lagSeconds }) => lagSeconds).filter((seconds) => seconds != null);
  return ages.length ? `${age(Math.min(...ages))} ago` : "none yet";
}
