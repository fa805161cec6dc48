// Who else decides, how old their last message is, and by which configuration they decide.

import { call } from "./api.js";
import { cell, el, keyed, setData, setText, table } from "./dom.js";
import { bytes, count, counted } from "./format.js";
import { every } from "./poll.js";

const section = document.getElementById("replicas");
const link = document.getElementById("replicas-link");
const facts = document.getElementById("replicas-facts");
const place = document.getElementById("replicas-table");
const COLUMNS = [
  { name: "Replica", kind: "key" }, { name: "State", kind: "why" }, { name: "Last message", kind: "num" },
  { name: "Missing", kind: "num" }, { name: "Received", kind: "num" }, { name: "Configuration", kind: "num" },
  { name: "Problem", kind: "why" },
];
let shown = null;
let own = null;

export function beginReplicas() {
  every(2, () => call("v1/replicas"), showReplicas, (message) => setText(facts, message));
}

function showReplicas(answer) {
  const isAlone = answer.transport === "none";
  section.hidden = link.hidden = isAlone;
  if (isAlone) return;
  own = answer;
  const heard = answer.replicas.filter(({ state }) => state === "live" || state === "behind");
  const same = heard.filter(({ configuration }) => configuration === answer.configuration);
  setText(facts, `${answer.name}, by ${answer.transport}: ${counted(heard.length, "other")} heard` +
    (heard.length ? `, ${count(same.length)} with the same configuration` : ": this replica decides alone"));
  if (!shown) {
    shown = table("Replicas", COLUMNS);
    place.replaceChildren(shown.node);
  }
  keyed(shown.body, answer.replicas, ({ id }) => id, row);
}

function row() {
  const texts = COLUMNS.map(() => el("span"));
  const [name, state, age, missing, received, configuration, problem] = texts;
  const node = el("tr", { role: "row" }, COLUMNS.map((column, number) => cell(column, texts[number])));
  name.className = "strong";
  return {
    node,
    update(replica) {
      const isSame = replica.configuration === own.configuration;
      setText(name, replica.name);
      setText(state, replica.state);
      setData(node, "state", replica.state);
      setText(age, `${replica.ageSeconds.toFixed(1)} s ago`);
      setText(missing, count(replica.missingMessages));
      setText(received, bytes(replica.receivedBytes));
      setText(configuration, replica.generation === null ? "–" : `${count(replica.generation)}, ${isSame ? "same" : "another"}`);
      setText(problem, replica.problem ?? "–");
    },
  };
}
