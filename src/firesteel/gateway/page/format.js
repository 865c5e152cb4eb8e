// Numbers as text: a fixed number of decimals, a narrow space before the unit.

const GIB = 2 ** 30;
const MIB = 2 ** 20;

export const NONE = "–";

function number(value, digits) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function gib(bytes, digits = 1) {
  if (!known(bytes)) return NONE;
  return bytes && bytes < GIB ? `${number(bytes / MIB, 0)} MiB` : `${number(bytes / GIB, digits)} GiB`;
}

/** One unit for a whole column, so that its points are aligned: that of the largest. */
export function columnBytes(values) {
  if (!values.some((value) => value >= GIB)) return gib;
  return (bytes) => (known(bytes) ? `${number(bytes / GIB, 1)} GiB` : NONE);
}

export function count(value) {
  return known(value) ? number(value, 0) : NONE;
}

export function rate(value) {
  return known(value) ? number(value, 1) : NONE;
}

export function percent(share) {
  return known(share) ? `${number(share * 100, 0)} %` : NONE;
}

export function seconds(value, digits = 2) {
  return known(value) ? `${number(value, digits)} s` : NONE;
}

/** 85 -> 1 min 25 s; 120 -> 2 min */
export function duration(value) {
  if (!known(value)) return NONE;
  const whole = Math.max(0, Math.round(value));
  if (whole < 60) return `${whole} s`;
  const [large, unit, small, rest] = whole < 3600 ? [60, "min", 1, "s"] : whole < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const left = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${unit}${left ? ` ${left} ${rest}` : ""}`;
}

// --- scales of charts: one unit for all of a chart, by its highest value ---

const scale = (unit, name, digits) => ({ unit, text: (value, given = digits) => `${number(value / unit, given)}${name && ` ${name}`}` });

export const rateScale = (highest) => scale(1, "", highest < 1 ? 2 : 1);
export const wattScale = () => scale(1, "W", 1);
export const percentScale = (highest) => scale(0.01, "%", highest < 0.02 ? 2 : highest < 0.1 ? 1 : 0);
export const countScale = () => scale(1, "", 0);
countScale.isWhole = true;
export const firstScale = (highest) => scale(1, "s", highest < 1 ? 3 : 2);
export const gapScale = (highest) => scale(0.001, "ms", highest < 0.01 ? 1 : 0);
export const bytesScale = (highest) => (highest < GIB ? scale(MIB, "MiB", 0) : scale(GIB, "GiB", 1));

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short" });

export const time = (unix) => CLOCK.format(unix * 1000);

/** The time, and the day if it is not today. */
export function moment(unix) {
  const date = new Date(unix * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? CLOCK.format(date) : `${DAY.format(date)} ${CLOCK.format(date)}`;
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** `a`, `a and b`, `a, b and c` */
export function names(list) {
  return list.length < 2 ? list.join("") : `${list.slice(0, -1).join(", ")} and ${list[list.length - 1]}`;
}

export function band(value, format = rate) {
  return value ? `${format(value.low)} to ${format(value.high)}` : NONE;
}
