// A line chart in SVG: one line a model, the plan's band behind it, and the figures as a table.

import { List, cells, h, put, s, show, table } from "./dom.js";
import { moment } from "./format.js";

const HEIGHT = 180;
const LEFT = 74;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 24;
const HUES = 8;
const COLUMNS = [["Model", "name"], ["Now", "num"], ["Lowest", "num"], ["Highest", "num"], ["Plan", "num"]];

/**
 * `scale` has the unit of the whole chart: `scale(highest)` is {unit, text, digits, step}: round numbers of the axis are
 * multiples of `unit`, `text(value, digits)` has the unit, and no value has more decimals than `digits`.
 */
export function lineChart(title, scale) {
  let { unit, text } = scale(0);
  const svg = s("svg", { class: "chart", role: "img", height: HEIGHT, tabindex: "0" });
  const reading = h("p", { class: "small reading", "aria-live": "off" }, "");
  const rows = table(`${title}: figures`, COLUMNS, "narrow");
  const list = new List(rows.body, (row) => row.label, () => {
    const columns = cells(COLUMNS);
    const sample = s("svg", { width: 20, height: 10, "aria-hidden": "true" });
    const name = h("span");
    columns[0].append(sample, name);
    return {
      node: h("tr", {}, columns),
      update(row) {
        sample.replaceChildren(s("line", { x1: 0, x2: 18, y1: 5, y2: 5, class: lineClass(row.at) }));
        put(name, ` ${row.label}`);
        const known = row.values.filter((value) => value !== null);
        const last = known.length ? row.values.findLast((value) => value !== null) : null;
        put(columns[1], last === null ? "–" : said(row, row.values.lastIndexOf(last)));
        put(columns[2], known.length ? text(Math.min(...known)) : "–");
        put(columns[3], known.length ? text(Math.max(...known)) : "–");
        put(columns[4], row.band ? span(text(row.band.low), text(row.band.high)) : "–");
      },
    };
  });
  const none = h("p", { class: "message" }, "Reading …");
  const node = h("section", { class: "panel" }, h("h2", {}, title), none, svg, reading, rows.node);
  let data = null;
  const showData = (hasData) => { for (const part of [svg, reading, rows.node]) part.style.visibility = hasData ? "" : "hidden"; };
  showData(false); // its place is kept

  function draw() {
    const hasData = data.series.length > 0;
    put(none, "No data yet in this range.");
    show(none, !hasData);
    showData(hasData);
    const bands = data.series.filter((row) => row.band);
    const highest = Math.max(0, ...data.series.flatMap((row) => [...row.values, ...(row.few ?? []).map((few) => few?.most ?? null)].filter((value) => value !== null)), ...bands.map((row) => row.band.high));
    ({ unit, text } = scale(highest));
    list.set(data.series);
    rows.node.classList.toggle("no-plan", !data.series.some((row) => row.band));
    const width = Math.max(240, svg.clientWidth || 600);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const top = nice((highest || unit) / unit, scale.isWhole) * unit;
    const steps = data.steps;
    const x = (at) => LEFT + ((width - LEFT - RIGHT) * at) / Math.max(1, steps - 1);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const shares = scale.isWhole && (top / unit) % 2 ? [0, 1] : [0, 0.5, 1]; // half a request is no tick
    const parts = shares.flatMap((share) => [
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(top * share), y2: y(top * share) }),
      s("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, share ? tick(top * share) : "0"),
    ]);
    const marks = width > 500 ? 5 : 3;
    const places = [...new Set(Array.from({ length: marks }, (_, mark) => Math.round(((steps - 1) * mark) / (marks - 1))))];
    for (const [mark, at] of places.entries()) {
      const anchor = mark === 0 ? "start" : mark === places.length - 1 ? "end" : "middle";
      parts.push(s("text", { x: x(at), y: HEIGHT - 6, "text-anchor": anchor }, clock(data.start + at * data.step_s, data.step_s, steps)));
    }
    for (const { band: { low, high }, at } of bands) {
      parts.push(s("rect", { class: `band band-${at % HUES}`, x: LEFT, width: width - LEFT - RIGHT, y: y(high), height: Math.max(1, y(low) - y(high)) }));
    }
    for (const row of data.series) {
      parts.push(s("path", { class: lineClass(row.at), d: path(row.values, x, y) }));
      for (const [at, few] of (row.few ?? []).entries()) {
        if (few?.requests > 1) parts.push(s("line", { class: `${lineClass(row.at)} few`, x1: x(at), x2: x(at), y1: y(few.most), y2: y(few.least) }));
      }
      for (const [at, value] of alone(row.values)) parts.push(s("circle", { class: lineClass(row.at), cx: x(at), cy: y(value), r: 3 }));
    }
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", `${title}. The figures are in the table below.`);
  }

  /** The value; of a few requests all of them as a range: a percentile of three is none. */
  function said(row, at) {
    const few = row.few?.[at];
    if (!few) return text(row.values[at]);
    return few.requests < 2 ? `${text(few.most)} (1 request)` : `${span(text(few.least), text(few.most))} (${few.requests} requests)`;
  }

  /** As few decimals as this number needs. */
  function tick(value) {
    const [fine, coarse] = [text(value, 3), text(value, 0)];
    const shortest = [0, 1, 2].find((digits) => Math.abs(Number.parseFloat(text(value, digits).replaceAll(",", "")) - Number.parseFloat(fine.replaceAll(",", ""))) < 1e-9);
    return shortest === undefined ? fine : shortest === 0 ? coarse : text(value, shortest);
  }

  function point(event) {
    if (!data?.series.length) return;
    const box = svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const at = Math.max(0, Math.min(data.steps - 1, Math.round(share * (data.steps - 1))));
    const values = data.series.map((row) => `${row.label} ${row.values[at] === null || row.values[at] === undefined ? "–" : said(row, at)}`);
    put(reading, `${moment(data.start + at * data.step_s)}: ${values.join(", ")}`);
  }

  svg.addEventListener("pointermove", point);
  return { node, update(now) { data = now; draw(); }, redraw() { if (data) draw(); } };
}

/** `at`: which model of the service file, as on Now; -1 is the machine. */
function lineClass(at) {
  return at < 0 ? "line-machine" : `line-${at % HUES} dash-${Math.floor(at / HUES) % 3}`;
}

function path(values, x, y) {
  let text = "";
  let isOpen = false;
  values.forEach((value, at) => {
    if (value === null) { isOpen = false; return; }
    text += `${isOpen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = true;
  });
  return text;
}

/** Points with nothing before and after them: a line of one point cannot be seen. */
function alone(values) {
  return [...values.entries()].filter(([at, value]) => value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null);
}

/** `20 ms`, `57 ms` -> `20 to 57 ms` */
function span(low, high) {
  const unit = high.slice(high.indexOf(" "));
  return `${high.includes(" ") && low.endsWith(unit) ? low.slice(0, -unit.length) : low} to ${high}`;
}

/** The next of these times a power of ten; half of it is a round number too. */
function nice(value, isWhole) {
  if (isWhole && value < 2) return Math.max(1, Math.ceil(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}

/** Days, minutes or seconds, whatever tells the marks apart. */
function clock(unix, step, steps) {
  const date = new Date(unix * 1000);
  const parts = step >= 3600 ? { day: "2-digit", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(step * steps < 300 ? { second: "2-digit" } : {}) };
  return date.toLocaleString("en-GB", parts);
}
