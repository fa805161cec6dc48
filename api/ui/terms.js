// Terms of a total: their colors, and in words what made one endpoint better than another.

import { scorer, score, signed } from "./format.js";

const COLORS = 6;
const LEAST = 0.005; // what two digits show as nothing

/** Term number `number` of every profile has this color. */
export const colorOf = (number) => `term-${number % COLORS}`;

/** Parts of a bar in which `best` fills all. */
export function parts(terms, best) {
  return terms.map(({ name, product }, number) => ({
    key: name, color: colorOf(number), share: best > 0 ? product / best : 0,
  }));
}

/** Why a decision of a frame came about, in one line. */
export function why({ picked, terms, rival, tie, total, noPrefixReason, lacking }) {
  const blind = noPrefixReason ? ` (no prefix: ${noPrefixReason})` : "";
  if (lacking) return `no endpoint can do the stage ${lacking}${blind}`;
  if (!picked.length) return `filters dropped every endpoint${blind}`;
  if (!rival) return `nobody else could take it${blind}`;
  if (tie) return `tie at ${score(total)}; chance decided${blind}`;
  const gains = terms
    .map(({ name, product }, number) => ({ name, gain: product - rival.terms[number].product }))
    .filter(({ gain }) => Math.abs(gain) >= LEAST)
    .sort((a, b) => b.gain - a.gain)
    .map(({ name, gain }) => `${scorer(name)} ${signed(gain)}`);
  const whom = rival.total > total ? `picked by chance before ${rival.name}` : `over ${rival.name}`;
  return `${whom}: ${gains.join(", ") || "a hair"}${blind}`;
}
