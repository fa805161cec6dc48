// Calls of the REST API, with the token where one is wanted. Paths are relative to where the page is.

import { askToken, token } from "./token.js";

const BASE = new URL("..", import.meta.url);

/** An answer that is no good one, or none: `status` 0. */
export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * The response to a call; asks for the token once it is missing or wrong. Whoever has declined to give one is asked again
 * for what they want themselves: `insist`. Throws CallError.
 */
export async function request(path, { method = "GET", body, signal, insist = false } = {}) {
  for (;;) {
    const given = token();
    const headers = {};
    if (given) headers.Authorization = `Bearer ${sendable(given)}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(new URL(path, BASE), {
        method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new CallError(0, "kvatlas does not answer");
    }
    if (answer.ok) return answer;
    if (answer.status === 401 && await askToken(given, insist)) continue;
    throw new CallError(answer.status, await message(answer));
  }
}

/** The JSON of a good answer. Throws CallError. */
export async function call(path, options) {
  return (await request(path, options)).json();
}

/** A token without what `fetch` throws on in a header; such a token is wrong, and kvatlas is to say so. */
const sendable = (text) => text.replace(/[^\x20-\xff]/gu, "?");

async function message(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `kvatlas answered ${answer.status}`;
  }
}
