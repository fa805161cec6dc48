// Questions asked again and again, for as long as somebody can see the answers.

/**
 * Asks `question()` at once and then every `seconds` while the page is visible; returns a function that asks out of turn.
 * `show(answer)` gets each answer, `fail(message)` what kept it from coming.
 */
export function every(seconds, question, show, fail) {
  let timer = null;
  const ask = async () => {
    clearTimeout(timer);
    try {
      show(await question());
    } catch (error) {
      fail(error.message);
    }
    clearTimeout(timer);
    timer = setTimeout(() => (document.hidden ? null : ask()), 1000 * seconds);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  ask();
  return ask;
}
