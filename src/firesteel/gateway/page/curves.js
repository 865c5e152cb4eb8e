// Curves: the last 15 minutes, 24 hours or 30 days, by model, beside the plan's band.

import { get } from "./api.js";
import { field, h, options, put, select, show } from "./dom.js";
import { bytesScale, countScale, firstScale, gapScale, percentScale, rateScale, wattScale } from "./format.js";
import { lineChart } from "./chart.js";

const CHARTS = [
  ["tokens_per_s", "Tokens a second", rateScale],
  ["ttft_p50_s", "Time to first token, p50", firstScale],
  ["ttft_p95_s", "Time to first token, p95", firstScale],
  ["gap_p50_s", "Gap between tokens, p50", gapScale],
  ["gap_p95_s", "Gap between tokens, p95", gapScale],
  ["queue", "Waiting requests", countScale],
  ["kv_used", "KV cache used", percentScale],
  ["memory_bytes", "Memory", bytesScale],
  ["power_w", "Power", wattScale],
];
const EVERY_MS = { "15m": 5000, "24h": 60_000, "30d": 300_000 };

export function create(app) {
  const range = select("range", [["15m", "last 15 minutes"], ["24h", "last 24 hours"], ["30d", "last 30 days"]], () => load());
  const model = select("model", [["", "all"]], () => load());
  const status = h("p", { class: "message bad", role: "status", hidden: true });
  const charts = new Map(CHARTS.map(([name, title, scale]) => [name, lineChart(title, scale)]));
  const node = h("div", { class: "view" }, h("div", { class: "heading" }, h("h1", {}, "Curves"), h("p", { class: "lead" }, "Shaded: the plan. Time to first token: with waiting and loading. Point at a chart for its values.")),
    h("section", { class: "panel" }, h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, field("Range", range), field("Model", model)), status),
    h("div", { class: "columns charts" }, [...charts.values()].map((chart) => chart.node)));
  let timer = null;
  let asked = null;
  const redraw = () => { for (const chart of charts.values()) chart.redraw(); };

  async function load() {
    clearTimeout(timer);
    asked?.abort();
    const own = (asked = new AbortController());
    try {
      const query = new URLSearchParams({ range: range.value, ...(model.value ? { model: model.value } : {}) });
      draw(await get(`/api/curves?${query}`, { signal: own.signal }));
      show(status, false);
    } catch (error) {
      if (error.name === "AbortError") return;
      show(status, true);
      put(status, error.status === 404 ? "This gateway keeps no curves." : error.message);
    }
    if (asked === own) timer = setTimeout(load, EVERY_MS[range.value]);
  }

  function draw({ start, step_s, series }) {
    const names = [...new Set([...app.state?.models.map((each) => each.name) ?? [], ...series.map((row) => row.model).filter(Boolean)])];
    const steps = Math.max(0, ...series.map((row) => row.values.length));
    for (const [name, chart] of charts) {
      const rows = series.filter((row) => row.name === name).map((row) => ({ label: row.model ?? "machine", at: names.indexOf(row.model), values: row.values, band: row.band, few: row.few ?? [] }));
      chart.update({ start, step_s, steps, series: rows });
    }
  }

  return {
    node,
    show() { window.addEventListener("resize", redraw); load(); },
    hide() { window.removeEventListener("resize", redraw); clearTimeout(timer); asked?.abort(); },
    update(state) { options(model, [["", "all"], ...state.models.map((each) => [each.name, each.name])]); },
  };
}
