// Who else decides, how old their last message is, and by which configuration they decide.

import { call } from "./api.js";
import { cell, el, keyed, setData, setText, table } from "./dom.js";
import { age, bytes, count, counted, percent } from "./format.js";
import { every } from "./poll.js";

const section = document.getElementById("replicas");
const link = document.getElementById("replicas-link");
const facts = document.getElementById("replicas-facts");
const problem = document.getElementById("replicas-problem");
const place = document.getElementById("replicas-table");
const COLUMNS = [
  { name: "Replica", kind: "key" }, { name: "State", kind: "" }, { name: "Heard", kind: "num" },
  { name: "Received", kind: "num" }, { name: "Configuration", kind: "why" },
];
const HEARD = new Set(["live", "behind"]);
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
  const heard = answer.replicas.filter(({ state }) => HEARD.has(state));
  const differing = heard.filter(({ configuration }) => configuration !== answer.configuration);
  const agreement = differing.length ? `, ${count(differing.length)} with another configuration` : "";
  setText(facts, `${counted(heard.length, "other")} heard by ${answer.transport}` +
    (heard.length ? agreement : ": this replica decides alone") + crossed(answer));
  const unheard = answer.replicas.length - heard.length;
  setText(link, unheard ? `Replicas: ${count(unheard)} not heard` : "Replicas");
  setText(problem, answer.problem ?? "");
  if (!shown) {
    shown = table("Replicas", COLUMNS);
    place.replaceChildren(shown.node);
  }
  const here = { ...answer, state: "here", replicas: null, problem: null };
  const all = [here, ...answer.replicas].sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  keyed(shown.body, all, ({ id }) => id, row);
}

/** Decisions lost to staleness: picks of the others that were made while neither side knew of the other's. */
function crossed({ heardPicks, concurrentPicks }) {
  return heardPicks ? `; ${percent(concurrentPicks / heardPicks, 1)} of their picks crossed own ones` : "";
}

function row() {
  const name = el("span.strong"), notes = el("small"), warning = el("small.note"), state = el("span.chip");
  const [heard, received, configuration] = [el("span"), el("span"), el("span")];
  const cells = [[name, notes, warning], [state], [heard], [received], [configuration]];
  return {
    node: el("tr", { role: "row" }, COLUMNS.map((column, number) => cell(column, ...cells[number]))),
    update(replica) {
      const isHere = replica.state === "here", isHeard = HEARD.has(replica.state);
      setText(name, replica.name || "no name");
      setText(notes, isHere ? "this replica" : replica.version ? `kvatlas ${replica.version}` : "");
      setText(warning, warningOf(replica));
      setText(state, isHere ? "decides" : replica.state);
      setData(state, "state", isHere ? "live" : replica.state);
      setText(heard, isHere ? "–" : `${age(replica.ageSeconds)} ago`);
      setText(received, isHere ? "–" : bytes(replica.receivedBytes));
      const isSame = replica.configuration === own.configuration;
      const what = `generation ${count(replica.generation)}`;
      setText(configuration, isHere ? what : isHeard ? `${what}, ${isSame ? "the same" : "another"}` : "–");
      configuration.className = isHeard && !isSame ? "note" : "";
    },
  };
}

function warningOf(replica) {
  if (replica.problem) return replica.problem;
  return replica.missingMessages ? `${counted(replica.missingMessages, "message")} missing, and asked for again` : "";
}
