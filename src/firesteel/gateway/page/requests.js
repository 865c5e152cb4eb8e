// Requests: the log, live and filtered; one request as a waterfall.

import { get } from "./api.js";
import { List, attribute, field, h, options, put, putCoded, select, show, table, tableRow, textCell } from "./dom.js";
import { NONE, count, moment, names, plural, rate, seconds } from "./format.js";

const COLUMNS = [
  ["Ended", "time", endedCell],
  ["Model", "name", textCell((row) => row.model)],
  ["Key", "", textCell((row) => row.key || "no key")],
  ["API", "", textCell((row) => row.route)],
  ["Result", "", resultCell],
  ["Waited", "num", textCell((row) => seconds(row.waited_s, 3))],
  ["First token", "num", textCell((row) => (row.is_stream ? seconds(row.first_s, 3) : NONE))],
  ["Total", "num", textCell((row) => seconds(row.total_s, 3))],
  ["Tokens in", "num", textCell((row) => count(row.prompt_tokens))],
  ["Tokens out", "num", textCell((row) => count(row.completion_tokens))],
  ["Tokens/s", "num", textCell((row) => rate(speed(row)))],
];
const MAX_ROWS = 200;
const PAGE = 50;
const RESULTS = { whole: "complete", left: "client left", broke: "engine failed", refused: "refused" };

export function create(app) {
  const model = select("model", [["", "all"]], reload);
  const key = select("key", [["", "all"]], reload);
  const how = select("how", [["", "all"], ...Object.entries(RESULTS)], reload);
  const slower = h("input", { type: "number", name: "slower", min: "0", step: "any", placeholder: "any", onchange: reload });
  const until = h("input", { type: "datetime-local", name: "until", step: "60", onchange: reload });
  const quick = (text, set) => h("button", { type: "button", onclick: () => { set(); reload(); } }, text);
  const rows = table("Requests", COLUMNS, "requests");
  const list = new List(rows.body, (row) => row.id, () => requestRow((row) => pick(row)));
  const status = h("p", { class: "message", role: "status" }, "Reading the log …");
  const older = h("button", { type: "button", hidden: true, onclick: () => load("older") }, "Older");
  const newest = h("button", { type: "button", hidden: true, onclick: reload }, "Newest");
  const detail = waterfall();
  const node = h("div", { class: "view" },
    h("h1", {}, "Requests"),
    h("section", { class: "panel" },
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
        field("Model", model), field("Key", key), field("Result", how), field("Slower than, seconds", slower), field("Ended before", until)),
      h("div", { class: "row" },
        quick("Slower than 10 s", () => { slower.value = "10"; }),
        quick("Before today", () => { until.value = midnight(); }),
        quick("All requests", () => { for (const control of [model, key, how, slower, until]) control.value = ""; }))),
    detail.node,
    h("section", { class: "panel" }, status, rows.node, h("div", { class: "row" }, older, newest)));

  let found = [];
  let seen = null; // `requests` of the state that `found` was read at
  let isOpen = false;
  let isReading = false;
  let isPast = false; // pages of the past do not move
  let picked = null;
  const known = { model: new Set(), key: new Set() };

  function query(more) {
    const all = { limit: PAGE, model: model.value, key: key.value, how: how.value, slower: slower.value, until: until.value && new Date(until.value).getTime() / 1000, ...more };
    return new URLSearchParams(Object.entries(all).filter(([, value]) => value));
  }

  function reload() {
    found = [];
    isPast = false;
    load("all");
  }

  async function load(what) {
    if (isReading) return;
    isReading = true;
    const at = app.state?.requests;
    try {
      const newestId = found[0]?.id;
      const more = what === "older" ? { before: found[found.length - 1]?.id } : what === "new" && newestId ? { after: newestId } : {};
      const { requests } = await get(`/api/requests?${query(more)}`);
      if (what === "older") { found = requests; isPast = true; }
      else if (what === "new") found = [...requests, ...found].slice(0, MAX_ROWS);
      else found = requests;
      if (what !== "older") seen = at;
      show(older, requests.length === PAGE || (what === "new" && !older.hidden));
      draw();
    } catch (error) {
      put(status, `The log could not be read: ${error.message}`);
      status.className = "message bad";
    } finally {
      isReading = false;
    }
  }

  function draw() {
    for (const row of found) {
      known.model.add(row.model);
      known.key.add(row.key);
    }
    for (const each of [known.model, known.key]) while (each.size > 100) each.delete(each.values().next().value);
    options(model, [["", "all"], ...[...known.model].sort().map((name) => [name, name])]);
    options(key, [["", "all"], ...[...known.key].filter(Boolean).sort().map((name) => [name, name])]);
    list.set(found.map((row) => ({ ...row, isPicked: row.id === picked })));
    show(rows.node, found.length);
    show(newest, isPast);
    status.className = "message";
    const isFiltered = [model, key, how, slower, until].some((control) => control.value);
    put(status, found.length ? `${plural(found.length, "request")}, ${isPast ? "from the past" : "newest first, live"}.`
      : isFiltered ? "No request matches." : "No request yet. Try it sends one.");
  }

  function pick(row) {
    picked = picked === row.id ? null : row.id;
    detail.update(picked ? row : null);
    draw();
    if (picked) detail.node.scrollIntoView({ block: "nearest" });
  }

  return {
    node,
    show(params) {
      isOpen = true;
      if (params.model) { known.model.add(params.model); options(model, [["", "all"], [params.model, params.model]]); model.value = params.model; }
      reload();
    },
    hide() { isOpen = false; },
    update(state) { if (isOpen && !isPast && state.requests !== seen) load(found.length ? "new" : "all"); },
  };
}

/** When today began, as a field for a date and a time has it. */
function midnight() {
  const now = new Date();
  const pad = (value) => String(value).padStart(2, "0");
  return `${now.getFullYear()}-${pad(now.getMonth() + 1)}-${pad(now.getDate())}T00:00`;
}

function requestRow(onpick) {
  const { node, update } = tableRow(COLUMNS, onpick);
  return {
    node,
    update(now) {
      attribute(node, "aria-selected", now.isPicked ? "true" : null);
      update(now);
    },
  };
}

/** When it ended, as a button that shows the request in time. */
function endedCell(cell, onpick) {
  let row = null;
  const button = h("button", { type: "button", class: "plain", onclick: () => onpick(row) });
  cell.append(button);
  return (now) => {
    row = now;
    attribute(button, "aria-expanded", now.isPicked ? "true" : "false");
    put(button, moment(now.at));
  };
}

function resultCell(cell) {
  return (row) => {
    put(cell, result(row));
    cell.className = row.how === "whole" && row.status < 400 ? "" : "bad";
  };
}

function result(row) {
  return row.how === "whole" ? (row.status < 400 ? "complete" : `error ${row.status}`) : `${RESULTS[row.how] ?? row.how}${row.status >= 400 ? ` (${row.status})` : ""}`;
}

function speed(row) {
  const span = row.total_s - (row.first_s ?? row.total_s);
  if (row.is_stream) return row.completion_tokens > 1 && span > 0 ? (row.completion_tokens - 1) / span : null;
  const whole = row.total_s - row.waited_s; // reading the prompt included
  return row.completion_tokens && whole > 0 ? row.completion_tokens / whole : null;
}

/** One request in time: what it waited for, when its first token came, how long the answer took. */
function waterfall() {
  const title = h("h2");
  const steps = h("ol", { class: "steps" });
  const why = h("p", { class: "message" });
  const cache = h("p", { class: "message" });
  const node = h("section", { class: "panel", hidden: true, "aria-live": "polite" }, title, steps, why, cache);
  return {
    node,
    update(row) {
      show(node, row);
      if (!row) return;
      put(title, `${row.model}, ${moment(row.at)}, ${result(row)}`);
      putCoded(cache, [row.cache, row.normalized].filter(Boolean).join(". "));
      show(cache, row.cache || row.normalized);
      const loaded = Math.min(row.loaded_s ?? 0, row.waited_s);
      const prompt = row.prompt_tokens != null ? `, ${count(row.prompt_tokens)} tokens${row.cached_tokens ? `, ${count(row.cached_tokens)} of them cached` : ""}` : "";
      const answer = row.completion_tokens != null ? `, ${count(row.completion_tokens)} tokens` : "";
      const whole = row.prompt_tokens != null && row.completion_tokens != null ? `, ${count(row.prompt_tokens)} tokens in, ${count(row.completion_tokens)} out` : "";
      const after = row.is_stream ? [
        [`Prefill${prompt}`, row.waited_s, row.first_s ?? row.total_s, "hue0"],
        row.first_s != null ? [`Answer${answer}`, row.first_s, row.total_s, "hue2"] : null,
      ] : [[`Prefill and answer in one piece${whole}`, row.waited_s, row.total_s, "hue5"]];
      const parts = [
        ["Queued", 0, row.waited_s - loaded, "hue7"],
        loaded ? ["Model loaded", row.waited_s - loaded, row.waited_s, "hue4"] : null,
        ...after,
      ].filter(Boolean);
      steps.replaceChildren(...parts.map(([text, from, to, hue]) => {
        const bar = h("span", { class: `step ${hue}` });
        const total = row.total_s || 1;
        bar.style.marginLeft = `${(100 * from) / total}%`;
        bar.style.width = `${Math.max(0.3, (100 * Math.max(0, to - from)) / total)}%`;
        return h("li", {}, h("span", {}, text), h("span", { class: "num" }, seconds(to - from, 3)), h("span", { class: "track", "aria-hidden": "true" }, bar));
      }));
      const facts = [row.why, row.key ? `key ${row.key}` : "no key", `total ${seconds(row.total_s, 3)}`, `${count(row.bytes_in)} bytes in`, `${count(row.bytes_out)} bytes out`];
      put(why, names(facts.filter(Boolean)));
    },
  };
}
