// Figures for people, with units. Nothing known is a dash.

const INTEGER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const NOTHING = "–";

export const count = (n) => (n == null ? NOTHING : INTEGER.format(n));

/** `1 endpoint`, `3 endpoints`. */
export const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

export const percent = (share, digits = 0) => (share == null ? NOTHING : `${(100 * share).toFixed(digits)} %`);

/** A score or weight: as many digits as tell it apart. */
export const score = (n) => (n == null ? NOTHING : n.toFixed(2).replace("-", "−"));

/** The same with its sign. */
export const signed = (n) => (n >= 0 ? `+${n.toFixed(2)}` : `−${(-n).toFixed(2)}`);

/** Seconds as `40 ms`, `3.2 s`, `4 min`, `2 h`, `3 d`. */
export function age(seconds) {
  if (seconds == null) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${unit && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

/** Time of day of an ISO time, by this clock. */
export const clock = (iso) => new Date(iso).toLocaleTimeString("en", { hour12: false });

/** A scorer's name without what every scorer's name ends in. */
export const scorer = (name) => name.replace(/-scorer$/, "");
