// Now: the machine's memory by model, each model with its state and its buttons, and who waits.

import { request } from "./api.js";
import { List, attribute, coded, h, put, putCoded, show, table, tableRow, textCell } from "./dom.js";
import { NONE, columnBytes, count, duration, gib, moment, names, percent, plural, rate } from "./format.js";

const COLUMNS = [
  ["Model", "name", (cell) => nameCell(cell, [["try", "Try it"], ["requests", "Requests"], ["logs", "Log"]])],
  ["State", "state", stateCell],
  ["Requests", "num", requestsCell],
  ["Tokens/s", "num", textCell((model) => rate(model.tokens_per_s))],
  ["KV used", "num", textCell((model) => percent(model.kv_used))],
  ["Accepted", "num", textCell((model) => percent(model.acceptance))],
  ["Planned", "num", textCell((model, { bytes }) => bytes(model.planned_bytes))],
  ["Measured", "num", textCell((model, { bytes }) => bytes(model.measured_bytes))],
  ["Actions", "actions", (cell, { app }) => actionCell(cell, app)],
];
const GUEST_COLUMNS = [
  ["Model", "name", (cell) => nameCell(cell, [["try", "Try it"]])],
  ["State", "state", stateCell],
  ["Context", "num", textCell((model) => count(model.context))],
  ["Planned", "num", textCell((model) => gib(model.planned_bytes))],
];
const WAITING = [
  ["For", "name", textCell((row) => row.model)],
  ["Key", "", textCell((row) => row.key || "no key")],
  ["Waiting", "num", textCell((row) => duration(Date.now() / 1000 - row.since))],
  ["What happens", "wide", textCell((row) => row.doing)],
];
const PHASES = { ready: "ready", loading: "loading", unloading: "unloading", off: "off", cannot: "cannot run" };
const HUES = 8;

export function create(app) {
  const isAdmin = app.role === "admin";
  const memory = memoryPanel();
  const columns = isAdmin ? COLUMNS : GUEST_COLUMNS;
  const models = table("Models", columns, "models", isAdmin ? "steered" : "guest");
  const list = new List(models.body, (model) => model.name, () => tableRow(columns, { app, bytes: (value) => bytes(value) }));
  const empty = h("p", { class: "message", hidden: true }, "No model is in the service file yet. ",
    h("a", { href: "#fits" }, "What fits"), " shows what this machine can run, with the line for the file; saved there, a model appears here.");
  const waiting = waitingPanel();
  const happened = happenedPanel();
  const lead = h("p", { class: "lead" });
  const node = h("div", { class: "view" },
    h("div", { class: "heading" }, h("h1", {}, "Now"), lead),
    isAdmin && memory.node,
    h("section", { class: "panel" }, h("h2", {}, "Models"), empty, models.node),
    isAdmin && waiting.node,
    isAdmin && happened.node);
  let ticking = null;
  let bytes = gib;

  function update(state) {
    bytes = columnBytes(state.models.flatMap((model) => [model.planned_bytes, model.measured_bytes]));
    list.set(state.models);
    show(empty, !state.models.length);
    show(models.node, state.models.length);
    if (!isAdmin) return;
    put(lead, summary(state));
    memory.update(state);
    waiting.update(state);
    happened.update(app.events);
  }

  return {
    node,
    update,
    show() {
      clearInterval(ticking); // waiting times and remaining times go on without events
      ticking = setInterval(() => app.state && isAdmin && waiting.update(app.state), 1000);
    },
    hide() { clearInterval(ticking); },
  };
}

function summary({ models, waiting }) {
  const ready = models.filter((model) => model.phase === "ready");
  const sum = (value) => ready.reduce((all, model) => all + (model[value] ?? 0), 0);
  const bad = models.filter((model) => model.health?.ok === false).length;
  if (!models.length) return "";
  return [
    `${count(ready.length)} of ${plural(models.length, "model")} loaded`, `${plural(sum("busy"), "request")} running`,
    `${count(waiting)} waiting`, `${rate(sum("tokens_per_s"))} tokens/s`, bad && `${count(bad)} not healthy`,
  ].filter(Boolean).join(" · ");
}

// --- memory ---

const held = (model) => model.measured_bytes ?? model.needed_bytes ?? model.planned_bytes ?? 0;

/** What another model may take now. */
function left(memory) {
  return Math.max(0, Math.min((memory.ceiling_bytes ?? memory.total_bytes ?? Infinity) - memory.loaded_bytes, memory.available_bytes ?? Infinity));
}

function memoryPanel() {
  const bar = h("div", { class: "bar", role: "img" });
  const limit = h("div", { class: "limit" }, h("span", {}, "limit for models"));
  const legend = h("ul", { class: "legend" });
  const figures = h("dl", { class: "figures" });
  const parts = new List(bar, (part) => part.key, (part) => {
    const label = h("span");
    const piece = h("div", { class: `piece ${part.kind}` }, label);
    return {
      node: piece,
      update(now) {
        piece.className = `piece ${now.kind}`;
        piece.style.flexBasis = `${(100 * now.bytes) / now.total}%`;
        put(label, now.bytes / now.total > 0.07 ? now.mark : "");
      },
    };
  });
  const keys = new List(legend, (part) => part.key, (part) => {
    const swatch = h("span", { class: `swatch ${part.kind}`, "aria-hidden": "true" });
    const text = h("span");
    const size = h("span", { class: "num" });
    return {
      node: h("li", {}, swatch, text, size),
      update(now) { swatch.className = `swatch ${now.kind}`; put(swatch, now.mark); put(text, now.text); put(size, now.size(now.bytes)); },
    };
  });
  const rows = new List(figures, ([title]) => title, ([title]) => {
    const value = h("dd");
    return { node: h("div", {}, h("dt", {}, title), value), update: ([, text]) => put(value, text) };
  });
  let hasGpu = false; // a reading may be late on a busy machine, and its figures keep their places
  return {
    node: h("section", { class: "panel" }, h("h2", {}, "Memory"), h("div", { class: "barbox" }, bar, limit), legend, figures),
    update({ memory: now, models, gpu }) {
      const total = now.total_bytes ?? now.ceiling_bytes ?? 1;
      const size = columnBytes([total]);
      const running = models.filter((model) => model.phase !== "off" && model.phase !== "cannot" && held(model));
      let used = 0;
      const pieces = running.map((model, at) => {
        used += held(model);
        const how = model.phase === "ready" ? "" : `, ${model.phase}`;
        return { key: `model ${model.name}`, kind: `hue${models.indexOf(model) % HUES} ${model.phase}`, mark: String(at + 1), text: `${model.name}${how}`, bytes: held(model), total, size };
      });
      const free = Math.min(now.available_bytes ?? 0, total);
      const other = Math.max(0, total - free - used);
      if (other) pieces.push({ key: "other", kind: "other", mark: "", text: "other programs", bytes: other, total, size });
      pieces.push({ key: "free", kind: "free", mark: "", text: "free", bytes: Math.max(0, Math.min(free, total - used)), total, size });
      parts.set(pieces);
      keys.set(pieces);
      const summary = pieces.map((piece) => `${piece.text} ${size(piece.bytes)}`).join(", ");
      attribute(bar, "aria-label", `Memory of this machine, ${gib(total)}: ${summary}. Models may hold ${gib(now.ceiling_bytes)}.`);
      show(limit, now.ceiling_bytes && now.ceiling_bytes < total);
      limit.classList.toggle("left", now.ceiling_bytes < total / 8);
      limit.style.left = `${Math.min(100, (100 * (now.ceiling_bytes ?? 0)) / total)}%`;
      rows.set([
        ["Machine", gib(total)],
        ["Limit for models", gib(now.ceiling_bytes)],
        ["Models hold", size(now.loaded_bytes)],
        ["Left for models", size(left(now))],
        ["Guard stops below", size(now.floor_bytes)],
        ...((hasGpu ||= Boolean(gpu)) ? [
          ["GPU temperature", gpu?.temperature_c != null ? `${count(gpu.temperature_c)} °C` : NONE],
          ["Power", gpu?.power_w != null ? `${rate(gpu.power_w)} W` : NONE],
          ["Clock", gpu?.clock_mhz != null ? `${count(gpu.clock_mhz)} MHz` : NONE],
        ] : []),
      ]);
    },
  };
}

// --- models ---

function nameCell(cell, views) {
  const title = h("strong");
  const about = h("span", { class: "small" });
  const health = h("span", { class: "health" });
  const links = views.map(([view, text]) => [view, text, h("a", {}, text)]);
  cell.append(title, about, health, h("span", { class: "links" }, links.map(([, , link]) => link)));
  return (model) => {
    put(title, model.name);
    const also = model.aliases?.length ? `also ${names(model.aliases)}` : "";
    put(about, [model.engine, model.context && `${count(model.context)} tokens`, model.pinned && "pinned", model.outside && "runs elsewhere", also].filter(Boolean).join(" · "));
    const text = model.phase === "ready" || model.health?.ok === false ? model.health?.text : null;
    show(health, text && model.phase !== "cannot");
    putCoded(health, text ?? "");
    health.className = `health ${model.health?.ok === false ? "bad" : "good"}`;
    for (const [view, text, link] of links) {
      attribute(link, "href", `#${view}?${new URLSearchParams({ model: model.name })}`);
      attribute(link, "aria-label", `${text}: ${model.name}`);
      show(link, model.phase !== "cannot");
    }
  };
}

function stateCell(cell) {
  const word = h("span", { class: "phase" });
  const detail = h("span", { class: "small" });
  cell.append(word, detail);
  return (model) => {
    put(word, model.requested && model.phase === "off" ? "waits to load" : PHASES[model.phase] ?? model.phase);
    word.className = `phase ${model.phase}${model.phase === "off" && model.why ? " failed" : ""}`;
    const eta = model.eta_s != null ? `about ${duration(model.eta_s)} left` : "";
    const doing = model.doing?.replace(`loading ${model.name}: `, "");
    putCoded(detail, [doing, eta, model.doing ? "" : model.note, model.phase === "ready" || model.health?.ok === false ? "" : model.why].filter(Boolean).join(" · "));
  };
}

function requestsCell(cell) {
  const [busy, waiting] = [h("span"), h("span", { class: "small below" })];
  cell.append(busy, waiting);
  return (model) => {
    put(busy, count(model.busy));
    put(waiting, model.waiting ? `${count(model.waiting)} waiting` : "");
  };
}

/** The button, and below it what it would do. */
function actionCell(cell, app) {
  let model = null;
  const act = (action) => async () => {
    primary.disabled = pin.disabled = true;
    put(result, "");
    try {
      await request(`/api/models/${encodeURIComponent(model.name)}/${action()}`, { method: "POST" });
      const state = await (await request("/api/state")).json();
      const now = state.models.find((each) => each.name === model.name);
      if (now) Object.assign(model, now);
      app.redraw();
    } catch (error) {
      put(result, error.message);
    } finally {
      update(model);
    }
  };
  const primary = h("button", { type: "button", onclick: act(() => (isOff(model) && !model.requested ? "load" : "unload")) });
  const pin = h("button", { type: "button", onclick: act(() => (model.pinned ? "unpin" : "pin")) });
  const effect = h("span", { class: "small" });
  const result = h("span", { class: "small bad", role: "status" });
  cell.append(h("div", { class: "row" }, primary, pin), effect, result);

  function update(now) {
    model = now;
    const off = isOff(model);
    const isOurs = !model.outside && model.phase !== "cannot";
    const isLoading = model.phase === "loading";
    const isWaiting = isLoading || (off && model.requested && !model.pinned);
    const label = isWaiting ? "Cancel" : off ? "Load" : "Unload";
    put(primary, label);
    attribute(primary, "aria-label", `${label} ${isWaiting ? "the load of " : ""}${model.name}`);
    primary.disabled = !isOurs || (off ? !isWaiting && (Boolean(model.why_not) || model.requested) : !isLoading && (model.phase !== "ready" || model.pinned));
    put(pin, model.pinned ? "Unpin" : "Pin");
    attribute(pin, "aria-label", `${model.pinned ? "Unpin" : "Pin"} ${model.name}`);
    pin.disabled = !isOurs;
    attribute(pin, "title", "Pinned: loaded, and never unloaded for another. Until the service file is read again.");
    putCoded(effect, effectText(app, model, off, isOurs));
  }
  return update;
}

const isOff = (model) => model.phase === "off" || model.phase === "cannot";

function effectText(app, model, off, isOurs) {
  if (model.outside) return "runs elsewhere: not started or stopped here";
  if (!isOurs) return "";
  if (off && model.why_not) return model.why_not;
  if (off && model.requested) return waitText(app, model);
  if (off && model.evicts.length) {
    const others = model.evicts.map((name) => app.get(name)).filter(Boolean);
    const freed = others.reduce((sum, other) => sum + held(other), 0);
    const busy = others.filter((other) => other.busy).map((other) => other.name);
    const wait = busy.length ? `, after the requests of ${names(busy)}` : "";
    const space = left(app.state.memory);
    const why = held(model) > space ? `needs ${gib(held(model))}, and ${gib(space)} are left: ` : "";
    return `${why}unloads ${names(model.evicts)} first (${gib(freed)})${wait}`;
  }
  if (off) {
    const fits = app.state.models.every(isOff) ? "fits" : "fits alongside running models";
    return model.load_s ? `${fits}; loads in about ${duration(model.load_s)}` : fits;
  }
  if (model.phase === "loading") return "can be unloaded once it is loaded";
  if (model.phase !== "ready") return "";
  if (model.pinned) return "pinned: stays loaded";
  return model.busy ? `after its ${plural(model.busy, "request")}; frees ${gib(held(model))}` : `frees ${gib(held(model))}`;
}

function waitText(app, model) {
  const loading = app.state.models.find((other) => other.phase === "loading");
  if (loading) return `waits until ${loading.name} is loaded`;
  return model.evicts.length ? `waits until ${names(model.evicts)} may be unloaded: in use, or loaded a moment ago` : "is about to be loaded";
}

// --- who waits, and what happened ---

function waitingPanel() {
  const rows = table("Waiting requests", WAITING);
  rows.node.classList.add("short");
  const none = h("p", { class: "message" }, "No requests are waiting.");
  const more = h("p", { class: "small" });
  const list = new List(rows.body, (row) => row.id, () => tableRow(WAITING));
  return {
    node: h("section", { class: "panel" }, h("h2", {}, "Waiting"), none, rows.node, more),
    update({ queue, waiting }) {
      list.set(queue.map((row, id) => ({ ...row, id })));
      show(none, !queue.length);
      show(rows.node, queue.length);
      put(more, waiting > queue.length ? `and ${plural(waiting - queue.length, "more request")}` : "");
    },
  };
}

function happenedPanel() {
  const rows = h("ol", { class: "events", tabindex: "0", "aria-label": "What happened, newest first" });
  const none = h("p", { class: "message" }, "Nothing was loaded or unloaded since the gateway started.");
  const list = new List(rows, (row) => row.id, (row) => ({
    node: h("li", { class: row.kind }, h("time", {}, moment(row.at)), h("span", {}, coded(row.text))),
    update() {},
  }));
  return {
    node: h("section", { class: "panel" }, h("h2", {}, "What happened"), none, rows),
    update(events) { list.set(events); show(none, !events.length); },
  };
}
