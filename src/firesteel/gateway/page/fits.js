// What fits: the catalog planned for this machine, one plan in detail, and the check of a pasted command.

import { commandDocument } from "./api.js";
import { List, attribute, cells, coded, copyable, field, h, message, put, select, show, table } from "./dom.js";
import { NONE, band, columnBytes, count, duration, gib, names, plural, rate } from "./format.js";

const COLUMNS = [["Model", "name"], ["Fits alone", ""], ["Beside what runs", ""], ["Needs", "num"], ["Tokens/s, one user", "num"], ["Speed is", ""], ["Engine", "word"], ["Plan", ""]];
const BASES = { "measured here": "measured here", "measured recipe": "measured, same recipe", "measured model": "measured, same model", fitted: "estimated", roofline: "a rough estimate" };
const PARTS = [["Part", "name"], ["Bytes", "num"], ["From", "wide"]];
const GOALS = [["", "best first"], ["speed", "speed: one user's tokens a second"], ["context", "context: the longest"], ["throughput", "throughput: all users together"], ["quality", "quality: least lost to quantization"]];
const CONTEXTS = [2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144];
const PAUSE_MS = 300;
const TINY_BYTES = 2 ** 30;

export function create(app) {
  const goal = select("goal", GOALS, () => load());
  const [context, contextText] = slider("context", 0, CONTEXTS.length, "as in the recipe", (at) => `${count(CONTEXTS[at - 1])} tokens`);
  const [users, usersText] = slider("users", 0, 32, "as in the recipe", (at) => `${at}`);
  const fitsOnly = h("input", { type: "checkbox", checked: true, onchange: () => draw() });
  const status = h("p", { class: "message", role: "status" }, "Planning …");
  const rows = table("Models of the catalog", COLUMNS);
  rows.node.classList.add("tall");
  const list = new List(rows.body, (row) => row.name, () => catalogRow((row) => pick(row.name)));
  const plan = planPanel(app);
  const node = h("div", { class: "view" }, h("h1", {}, "What fits"),
    h("section", { class: "panel" }, h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      field("Sort by", goal),
      field(contextText, context), field(usersText, users), h("label", { class: "check" }, fitsOnly, h("span", {}, "Only what fits alone")))),
    plan.node,
    h("section", { class: "panel" }, h("h2", {}, "Catalog"), status, rows.node),
    checkPanel());
  let found = null;
  let picked = null;
  let asked = null;
  let timer = null;

  function slider(name, least, most, none, text) {
    const label = h("span");
    const input = h("input", { type: "range", name, min: least, max: most, step: 1, value: 0 });
    const tell = () => {
      const words = Number(input.value) ? text(Number(input.value)) : none;
      put(label, `${name === "users" ? "Users at once" : "Context"}: ${words}`);
      attribute(input, "aria-valuetext", words);
    };
    input.addEventListener("input", () => { tell(); clearTimeout(timer); timer = setTimeout(load, PAUSE_MS); });
    tell();
    return [input, label];
  }

  const sizes = () => ({
    ...(Number(context.value) ? { context: CONTEXTS[Number(context.value) - 1] } : {}),
    ...(Number(users.value) ? { users: Number(users.value) } : {}),
  });

  async function load() {
    asked?.abort();
    asked = new AbortController();
    put(status, "Planning …");
    if (picked) plan.load(picked, sizes());
    try {
      const query = new URLSearchParams({ ...sizes(), ...(goal.value ? { goal: goal.value } : {}) });
      found = await commandDocument(`/api/catalog?${query}`, { signal: asked.signal });
      draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      put(status, error.message);
      status.className = "message bad";
    }
  }

  function draw() {
    if (!found) return;
    const memory = app.state.memory;
    const left = Math.min(memory.ceiling_bytes ?? Infinity, found.host.room_bytes + memory.loaded_bytes) - memory.loaded_bytes;
    const limit = Math.max(memory.ceiling_bytes ?? 0, found.host.room_bytes);
    const bytes = columnBytes(found.models.map((row) => row.needed_bytes?.expected));
    const rated = found.models.map((row) => ({ ...row, bytes, left, fit: fit(row, limit), isPicked: row.name === picked }));
    // The server ranks for what is free now. Here it is what fits alone; the tiny models for trying out come last.
    const rank = (row) => 2 * (row.fit !== "yes") + ((row.needed_bytes?.expected ?? Infinity) < TINY_BYTES);
    const all = rated.filter((row) => row.fit === "yes" || !fitsOnly.checked).sort((one, other) => rank(one) - rank(other));
    list.set(all);
    show(rows.node, all.length);
    status.className = "message";
    put(status, all.length ? `${count(all.length)} of ${count(found.models.length)} for ${found.host.title}, ${gib(found.host.memory_total_bytes)}; ${gib(Math.max(0, left))} left alongside running models.`
      : `Nothing of ${count(found.models.length)} models can run on ${found.host.title} with this context and so many users. A smaller context needs less.`);
  }

  function pick(name) {
    picked = picked === name ? null : name;
    show(plan.node, picked);
    if (picked) { plan.load(picked, sizes()); plan.node.scrollIntoView({ block: "nearest" }); }
    draw();
  }

  return { node, show() { if (!found) load(); }, hide() { asked?.abort(); }, update() { draw(); } };
}

/** Alone on this machine. A plan's own verdict counts what runs, which the next column is for. */
function fit(row, limit) {
  if (row.can_run) return "yes";
  if (row.verdict === "fits") return "cannot run here";
  return row.needed_bytes && row.needed_bytes.high <= limit ? "yes" : "no";
}

function catalogRow(onpick) {
  const columns = cells(COLUMNS);
  let row = null;
  const button = h("button", { type: "button", onclick: () => onpick(row) }, "Plan");
  const name = h("strong");
  const title = h("span", { class: "small" });
  columns[0].append(name, title);
  columns[7].append(button);
  const node = h("tr", {}, columns);
  return {
    node,
    update(now) {
      row = now;
      attribute(node, "aria-selected", now.isPicked ? "true" : null);
      attribute(button, "aria-label", `Plan ${now.name}`);
      put(button, now.isPicked ? "Close" : "Plan");
      put(name, now.name);
      put(title, `${now.title} · recipe ${now.status}`);
      put(columns[1], now.fit);
      columns[1].className = now.fit === "yes" ? "good" : "bad";
      const need = now.needed_bytes?.high;
      put(columns[2], need == null ? NONE : need <= now.left ? "yes" : `no, ${gib(need - now.left)} too much`);
      put(columns[3], now.bytes(now.needed_bytes?.expected));
      put(columns[4], now.decode_tokens_per_s ? band(now.decode_tokens_per_s) : NONE);
      put(columns[5], BASES[now.speed_basis] ?? "not known");
      put(columns[6], now.engine);
    },
  };
}

function planPanel(app) {
  const title = h("h2");
  const status = h("p", { class: "message", role: "status" });
  const parts = table("Parts of the memory", PARTS);
  const list = new List(parts.body, (part) => part.name, () => {
    const columns = cells(PARTS);
    return { node: h("tr", {}, columns), update(part) { put(columns[0], part.name); put(columns[1], bytes(part.bytes.expected)); put(columns[2], `${part.basis}: ${part.explanation}`); } };
  });
  const figures = h("dl", { class: "figures" });
  const notes = h("div");
  const up = copyable("Start it alone");
  const file = copyable("Line for the service file, under models:");
  const docker = copyable("Without firesteel");
  const details = h("div", { class: "stack", hidden: true }, figures, notes, parts.node, h("div", { class: "columns" }, up.node, file.node), docker.node);
  const node = h("section", { class: "panel", hidden: true }, title, status, details);
  let asked = null;
  let bytes = gib;
  return {
    node,
    async load(name, sizes) {
      asked?.abort();
      asked = new AbortController();
      show(details, title.textContent === `Plan: ${name}`); // another size of the same model replaces its figures
      put(title, `Plan: ${name}`);
      put(status, "Planning …");
      try {
        const query = new URLSearchParams({ model: name, ...sizes });
        const found = await commandDocument(`/api/plan?${query}`, { signal: asked.signal });
        draw(found, sizes);
      } catch (error) {
        if (error.name !== "AbortError") put(status, error.message);
      }
    },
  };

  function draw(found, sizes) {
    const { memory, speed, cache } = found;
    const running = app.state.models.filter((model) => model.phase !== "off" && model.phase !== "cannot");
    const limit = app.state.memory.ceiling_bytes ?? 0;
    const alongside = running.length ? ` alongside ${names(running.map((model) => model.name))}` : "";
    const alone = alongside && memory.needed_bytes.high <= limit ? ` Alone it would fit the limit of ${gib(limit)}: Now unloads what is in its way.` : "";
    const isFit = memory.verdict !== "does not fit";
    put(status, isFit ? `It ${memory.verdict === "tight" ? "fits tightly" : "fits"}${alongside}.` : `It does not fit${alongside}: it needs ${gib(memory.needed_bytes.expected)}, and ${gib(memory.budget_bytes)} are left.${alone}`);
    status.className = `message ${isFit ? "good" : "bad"}`;
    show(details, true);
    bytes = columnBytes(memory.parts.map((part) => part.bytes.expected));
    list.set(memory.parts);
    const start = speed?.start_up?.reduce((sum, step) => sum + step.seconds.expected, 0);
    const pairs = [
      ["Memory", gib(memory.needed_bytes.expected)], ["Budget", gib(memory.budget_bytes)],
      ["Context", cache ? count(cache.context) : NONE], ["Users", cache ? count(cache.users) : NONE],
      ["Tokens/s, one user", band(speed?.decode_tokens_per_s)], ["Tokens/s, all users", band(speed?.batch?.total_tokens_per_s)],
      ["First token, 8k prompt", speed?.prefill ? band(speed.prefill.ttft_ms, (value) => `${rate(value / 1000)} s`) : NONE],
      ["First start", start ? `about ${duration(start)}` : NONE],
    ];
    figures.replaceChildren(...pairs.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
    notes.replaceChildren(...(found.findings ?? []).map(finding), ...(found.notes ?? []).map((note) => message("", typeof note === "string" ? note : note.says ?? "")));
    const flags = Object.entries(sizes).map(([key, value]) => ` --${key} ${value}`).join("");
    put(up.code, `firesteel up ${found.name}${flags}`);
    const more = Object.entries(sizes).map(([key, value]) => `, ${key}: ${value}`).join("");
    const short = found.name.split("/").pop();
    put(file.code, `  ${short}: {recipe: ${found.name}${more}}`);
    show(docker.node, found.launch?.docker);
    put(docker.code, found.launch?.docker ?? "");
  }
}

function finding(each) {
  return h("div", { class: "finding" },
    h("p", {}, h("strong", { class: { stop: "bad", warn: "warn" }[each.level] ?? "" }, each.level), ` ${each.rule}: `, coded(each.says)),
    each.instead && h("p", { class: "small" }, "instead: ", h("code", {}, each.instead)));
}

// --- check a pasted command ---

function checkPanel() {
  const text = h("textarea", { class: "code", name: "command", rows: "5", required: true, spellcheck: "false", placeholder: "docker run … or vllm serve … or a compose file" });
  const status = h("p", { class: "message", role: "status" });
  const marked = h("pre", { class: "marked", hidden: true, tabindex: "0", role: "region", "aria-label": "The text, with its findings marked" });
  const findings = h("div");
  const form = h("form", {}, field("A command, script or compose file", text), h("div", { class: "row" }, h("button", { class: "primary" }, "Check")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    put(status, "Checking …");
    status.className = "message";
    try {
      const found = await commandDocument("/api/check", { method: "POST", body: text.value });
      const all = found.findings;
      put(status, all.length ? `${plural(all.length, "finding")} in ${plural(found.launches, "launch", "launches")}.` : found.launches ? "Nothing wrong was found." : "No launch of an engine was found in this text.");
      status.className = `message ${all.some((each) => each.level === "stop") ? "bad" : all.length ? "" : "good"}`;
      findings.replaceChildren(...all.map(finding), ...found.unread.map((each) => message("bad", each.why ?? each.message ?? String(each))));
      show(marked, all.length);
      marked.replaceChildren(...marks(text.value, all));
    } catch (error) {
      put(status, error.message);
      status.className = "message bad";
      show(marked, false);
      findings.replaceChildren();
    }
  });
  return h("section", { class: "panel" }, h("h2", {}, "Check a command"), form, status, marked, findings);
}

/** The text, with a mark where each finding is: the words that it saw, or the rest of its word. */
function marks(text, findings) {
  const lines = text.split("\n");
  const starts = lines.reduce((all, line) => [...all, all[all.length - 1] + line.length + 1], [0]);
  const spans = findings.filter((each) => each.line && each.line <= lines.length).map((each) => {
    const from = starts[each.line - 1] + Math.max(0, (each.column ?? 1) - 1);
    const saw = each.saw && text.startsWith(each.saw, from) ? each.saw.length : (text.slice(from).match(/^\S+/)?.[0].length ?? 1);
    return { from, to: from + saw, each };
  }).sort((one, two) => one.from - two.from);
  const parts = [];
  let at = 0;
  for (const { from, to, each } of spans) {
    const begin = Math.max(from, at);
    if (begin >= to) continue;
    parts.push(text.slice(at, begin), h("mark", { class: each.level, title: each.says }, text.slice(begin, to)), h("small", { class: "small" }, ` [${each.level}: ${each.rule}]`));
    at = to;
  }
  parts.push(text.slice(at));
  return parts;
}
