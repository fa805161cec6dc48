// The bearer token: asked for once, kept in the tab's session storage and nowhere else.

import { show } from "./dom.js";

const KEY = "kvatlas.token";
const dialog = document.getElementById("token");
const input = document.getElementById("token-input");
const forget = document.getElementById("forget-token");
const give = document.getElementById("give-token");
let asking = null;
let isDeclined = false;

/** The token that was given, null without one. */
export const token = () => sessionStorage.getItem(KEY);

/**
 * Asks for a token in place of `refused`, the one that was not good or null; returns whether there is another to try.
 * Several calls that are refused at once ask once, and who declines is asked again only with `insist`.
 */
export async function askToken(refused, insist = false) {
  if (token() !== refused) return true;
  if (isDeclined && !insist) return false;
  asking ??= ask(refused).finally(() => { asking = null; });
  return asking;
}

async function ask(refused) {
  const form = dialog.querySelector("form");
  document.getElementById("token-why").textContent = refused
    ? "That is not the token of this kvatlas." : "This kvatlas answers those who have its bearer token.";
  input.value = "";
  let given = null;
  form.onsubmit = (event) => {
    event.preventDefault();
    given = input.value.trim();
    dialog.close();
  };
  await show(dialog);
  input.value = "";
  if (given) sessionStorage.setItem(KEY, given);
  else sessionStorage.removeItem(KEY);
  isDeclined = !given;
  forget.hidden = !given;
  give.hidden = Boolean(given);
  return Boolean(given);
}

forget.hidden = !token();
give.addEventListener("click", () => location.reload());
forget.addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  location.reload();
});
