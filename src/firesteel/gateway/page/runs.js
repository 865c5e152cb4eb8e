// Runs: what `bench` measured, with intervals; against the plan; two compared.

import { commandDocument } from "./api.js";
import { List, attribute, cells, h, message, put, show, table } from "./dom.js";
import { NONE, count, plural, rate, seconds } from "./format.js";

const COLUMNS = [["Began", ""], ["Model", "name"], ["Engine", ""], ["Tokens/s, one user", "num"], ["Points", "num"], ["Samples", "num"], ["State", ""], ["Actions", ""]];
const FIGURES = [["Load", "name"], ["Tokens/s, one user", "num"], ["Tokens/s, all", "num"], ["Prefill, tokens/s", "num"], ["First token, p50", "num"], ["Gap, p50", "num"], ["Failed", "num"]];
const PLAN = [["Load", "name"], ["Figure", ""], ["Measured", "num"], ["Planned", "num"], ["Off by", "num"], ["Verdict", ""]];
const COMPARED = [["Load", "name"], ["Figure", ""], ["First", "num"], ["Second", "num"], ["Ratio", "num"], ["Verdict", ""]];

export function create() {
  const status = h("p", { class: "message", role: "status" }, "Reading the history …");
  const rows = table("Runs", COLUMNS);
  const compare = h("button", { type: "button", disabled: true, onclick: () => compareTwo() }, "Compare the two marked");
  const detail = h("section", { class: "panel", hidden: true, "aria-live": "polite" });
  const node = h("div", { class: "view" }, h("h1", {}, "Runs"), detail,
    h("section", { class: "panel" }, status, rows.node, h("div", { class: "row" }, compare)));
  let marked = [];
  let found = [];
  const list = new List(rows.body, (run) => run.id, () => runRow(open, mark));

  async function load() {
    try {
      found = (await commandDocument("/api/runs")).runs;
      put(status, found.length ? found.length < 2 ? "1 run." : `${plural(found.length, "run")}, newest first. Mark two to compare them.` : "Nothing was measured yet. firesteel bench measures a running model.");
      draw();
    } catch (error) {
      put(status, error.message);
      status.className = "message bad";
    }
  }

  function draw() {
    list.set(found.map((run) => ({ ...run, isMarked: marked.includes(run.id) })));
    show(rows.node, found.length);
    show(compare, found.length > 1);
    compare.disabled = marked.length !== 2;
  }

  function mark(run) {
    marked = marked.includes(run.id) ? marked.filter((id) => id !== run.id) : [...marked, run.id].slice(-2);
    draw();
  }

  async function fill(title, read) {
    show(detail, true);
    detail.replaceChildren(h("h2", {}, title), message("", "Reading …"));
    try {
      detail.replaceChildren(h("h2", {}, title), ...(await read()));
    } catch (error) {
      detail.replaceChildren(h("h2", {}, title), message("bad", error.message));
    }
    detail.scrollIntoView({ block: "nearest" });
  }

  const open = (run) => fill(`${run.model}, ${run.began.slice(0, 16).replace("T", " ")}`, async () => {
    const path = `/api/runs/${encodeURIComponent(run.id)}`;
    const [shown, plan] = await Promise.all([commandDocument(path), commandDocument(`${path}/plan`).catch((error) => error)]);
    return [figures(shown), h("h3", {}, "Plan against measured"),
      plan instanceof Error || !plan.rows.length ? message("", plan.message ?? "Its plan covers none of its figures.") : planned(plan),
      ...shown.notes.map((note) => message("", note))];
  });

  const compareTwo = () => {
    const [second, first] = [...marked].sort((one, two) => found.findIndex((run) => run.id === one) - found.findIndex((run) => run.id === two));
    return fill(`${first} and ${second}`, async () => {
      const result = await commandDocument(`/api/compare?${new URLSearchParams({ first, second })}`);
      if (!result.is_comparable) return result.why_not.map((each) => message("bad", `not comparable because ${each.setting} differs: ${each.says}`));
      return [compared(result), ...result.notes.map((note) => message("", note))];
    });
  };

  return { node, show() { load(); }, hide() {} };
}

function runRow(open, mark) {
  const columns = cells(COLUMNS);
  let run = null;
  const box = h("input", { type: "checkbox", onchange: () => mark(run) });
  const button = h("button", { type: "button", onclick: () => open(run) }, "Show");
  columns[7].append(h("div", { class: "row" }, button, h("label", { class: "check" }, box, h("span", {}, "compare"))));
  return {
    node: h("tr", {}, columns),
    update(now) {
      run = now;
      const texts = [now.began.slice(0, 16).replace("T", " "), now.model, [now.engine, now.version].filter(Boolean).join(" ") || "not known", rate(now.decode_tokens_per_s), count(now.points), count(now.samples), now.origin !== "measured here" ? now.origin : now.is_whole ? "complete" : "incomplete"];
      texts.forEach((text, at) => put(columns[at], text));
      box.checked = now.isMarked;
      attribute(box, "aria-label", `Compare ${now.id}`);
      attribute(button, "aria-label", `Show ${now.id}`);
    },
  };
}

function load(point) {
  const parts = [point.shape, `${point.users} ${point.users === 1 ? "user" : "users"}`, `${count(point.shared_tokens + point.prompt_tokens)} in`, `${count(point.answer_tokens)} out`, point.text];
  return parts.join(", ");
}

function figure(value) {
  if (!value) return NONE;
  return interval(rate(value.value), value.n < 2 ? "once" : `${rate(value.low)} to ${rate(value.high)}`);
}

/** The value, and below it its interval: so the values of a column are aligned by their point. */
const interval = (value, range) => [h("span", {}, value), h("span", { class: "small below" }, range)];

function filled(caption, columns, data) {
  const made = table(caption, columns);
  made.body.append(...data.map((texts) => { const all = cells(columns); texts.forEach((text, at) => all[at].append(...[text].flat())); return h("tr", {}, all); }));
  return made.node;
}

function figures(run) {
  const ms = (value) => (value == null ? NONE : `${rate(value)} ms`);
  return filled("Figures with 95 % intervals", FIGURES, run.figures.map((each) => [load(each.point), figure(each.decode_tokens_per_s), figure(each.total_tokens_per_s), figure(each.prefill_tokens_per_s), seconds(each.ttft_ms.p50 / 1000, 3), ms(each.inter_token_ms.p50), count(Object.values(each.wrong).reduce((sum, n) => sum + n, 0))]));
}

function planned(plan) {
  return filled("Plan against measured", PLAN, plan.rows.map((row) => [load(row.point), row.measure, figure(row.measured), interval(rate(row.planned.expected), `${rate(row.planned.low)} to ${rate(row.planned.high)}`), `${row.off >= 1 ? "+" : "−"}${rate(Math.abs(row.off - 1) * 100)} %`, row.verdict]));
}

function compared(result) {
  return filled("Two runs compared", COMPARED, result.rows.map((row) => [load(row.point), `${row.measure}, ${row.unit}`, figure(row.first), figure(row.second), interval(row.difference.ratio.toFixed(3), `${row.difference.low.toFixed(3)} to ${row.difference.high.toFixed(3)}`), row.difference.verdict]));
}
