// The frames of /v1/live, over fetch since EventSource cannot carry a token; comes back when the server does.

import { CallError, request } from "./api.js";

const SILENCE_MS = 60_000; // the largest fleets have a frame every few seconds
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 5_000;

/**
 * Watches while the page is visible: a hidden one takes no seat.
 * `onFrame(frame)` gets every frame, `onState(state, text)` one of connecting, live, gone, refused.
 */
export function watch({ onFrame, onState }) {
  let current = null;
  const begin = () => {
    current = new AbortController();
    run(current.signal, onFrame, onState);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) current?.abort();
    else if (current?.signal.aborted) begin();
  });
  begin();
}

async function run(signal, onFrame, onState) {
  let pause = FIRST_PAUSE_MS;
  onState("connecting", "connecting");
  while (!signal.aborted) {
    let why = "kvatlas ended the connection";
    try {
      for await (const frame of frames(signal)) {
        onState("live", "live");
        pause = FIRST_PAUSE_MS;
        onFrame(frame);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof CallError)) why = "the connection to kvatlas was lost";
      else why = error.message;
      if (error.status === 401) {
        onState("refused", "its token is needed");
        return;
      }
    }
    onState("gone", `${why}; trying again`);
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

async function* frames(signal) {
  const quiet = new AbortController();
  const both = AbortSignal.any([signal, quiet.signal]);
  const answer = await request("v1/live", { signal: both });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const timer = setTimeout(() => quiet.abort(), SILENCE_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    const newest = events.at(-1); // each is the whole state, so older ones tell nothing
    if (newest !== undefined) yield JSON.parse(newest.slice(newest.indexOf("data: ") + 6));
  }
}
