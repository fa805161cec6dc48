// The page: one stream of frames, shown by sections.

import { setData, setText } from "./dom.js";
import { bytes, clock, count, counted } from "./format.js";
import { beginAudit } from "./audit.js";
import { showDecisions } from "./decisions.js";
import { beginDoctor } from "./doctor.js";
import { showFleet } from "./fleet.js";
import { followPolicy } from "./policy.js";
import { rememberFleet, waitNoLonger } from "./prompt.js";
import { beginReplicas } from "./replicas.js";
import { watch } from "./stream.js";
import { followWeights } from "./weights.js";

const connection = document.getElementById("connection");
const summary = document.getElementById("summary");
let last = null;

watch({
  onFrame(frame) {
    setText(summary, [
      frame.ready ? "ready" : "not ready",
      `configuration ${count(frame.generation)}`,
      `${counted(frame.keys, "block")} known, ${bytes(frame.bytes)}`,
    ].join(" · "));
    showFleet(frame);
    showDecisions(frame, last);
    rememberFleet(frame);
    followPolicy(frame.generation);
    followWeights(frame.generation);
    if (!last) {
      beginAudit();
      beginReplicas();
      beginDoctor();
    }
    last = frame;
  },
  onState(state, text) {
    const since = last && state === "gone" ? `; shown as of ${clock(last.time)}` : "";
    setText(connection, text + since);
    setData(connection, "state", state);
    setData(document.body, "connection", state);
    if (state === "gone" || state === "refused") waitNoLonger();
  },
});
