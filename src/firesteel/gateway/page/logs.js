// Logs: what an engine writes, live, with the phases of its start and what `logs --why` makes of it.

import { commandDocument, follow } from "./api.js";
import { coded, field, h, options, put, putCoded, select, show } from "./dom.js";
import { count, plural, time } from "./format.js";

const MAX_LINES = 2000;

export function create(app) {
  const model = select("model", [], () => open(model.value));
  const text = h("input", { type: "search", name: "text", placeholder: "all lines", oninput: () => filter() });
  const isFollowing = h("input", { type: "checkbox", checked: true });
  const again = h("button", { type: "button", onclick: () => diagnose() }, "Diagnose");
  const status = h("p", { class: "message", role: "status" });
  const log = h("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log" });
  const finding = h("section", { class: "panel", hidden: true });
  const node = h("div", { class: "view" },
    h("h1", {}, "Logs"),
    h("section", { class: "panel" }, h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      field("Model", model), field("Only lines with", text), h("label", { class: "check" }, isFollowing, h("span", {}, "Follow the end")), again)),
    finding,
    h("section", { class: "panel" }, status, log));
  let stream = null;
  let shown = "";
  let wanted = null;
  let phase = "";
  let marks = [];
  let asked = null;

  function open(name) {
    stream?.stop();
    shown = name;
    phase = app.get(name)?.phase;
    marks = [];
    log.replaceChildren();
    show(finding, false);
    show(log, true);
    if (!name) return put(status, "No model has a log yet.");
    put(status, "Reading …");
    let count_ = 0;
    stream = follow(`/api/models/${encodeURIComponent(name)}/logs?follow=1&lines=1000`, {
      up() { log.replaceChildren(); count_ = 0; put(status, "live"); },
      event(kind, line) { if (kind === "line") { add(line); put(status, `live, ${plural(++count_, "line")}`); } },
      down(error, pause) { put(status, `${error.message} Trying again in ${Math.ceil(pause / 1000)} s.`); },
      refused(error) {
        if (error.status !== 404) return put(status, error.message);
        const why = app.get(name)?.why;
        putCoded(status, `${name} has no log: its engine was not started here. ${why ? `Its last load failed: ${why}` : "Load it on Now."}`);
        show(log, false);
        show(finding, false);
      },
    });
    diagnose();
  }

  function add(line) {
    const node_ = h("span", { class: "line" }, line, "\n");
    mark(node_);
    append(node_);
  }

  function append(node_) {
    log.append(node_);
    while (log.childElementCount > MAX_LINES) log.firstElementChild.remove();
    hide(node_);
    if (isFollowing.checked) log.scrollTop = log.scrollHeight;
  }

  const hide = (line) => show(line, !text.value || line.textContent.toLowerCase().includes(text.value.toLowerCase()));

  function filter() {
    for (const line of log.children) hide(line);
  }

  function mark(line) {
    const found = marks.find((each) => each.text && line.textContent.includes(each.text));
    if (!found || line.dataset.mark) return;
    line.dataset.mark = found.says;
    line.classList.add(found.kind);
  }

  async function diagnose() {
    asked?.abort();
    asked = new AbortController();
    try {
      const found = await commandDocument(`/api/models/${encodeURIComponent(shown)}/diagnose`, { signal: asked.signal });
      marks = [
        ...[...found.causes, ...found.follows].map((cause) => ({ kind: "bad", says: cause.says, text: cause.text })),
        ...found.notes.map((cause) => ({ kind: "warn", says: cause.says, text: cause.text })),
        ...found.phases.map((each) => ({ kind: "phase-mark", says: each.says, text: each.text })),
      ];
      for (const line of log.children) mark(line);
      tell(found);
    } catch (error) {
      if (error.name !== "AbortError" && !log.hidden) { finding.replaceChildren(h("p", { class: "message" }, error.message)); show(finding, true); }
    }
  }

  function tell(found) {
    const states = { healthy: "started normally", unfinished: "no failure, but not up yet", failed: "failed" };
    const engine = found.engine ? `${found.engine} ${found.version ?? "(version not known)"}` : "no engine found";
    const causes = [...found.causes, ...found.notes];
    finding.replaceChildren(
      h("h2", {}, `Diagnosis: ${states[found.state] ?? found.state}`),
      h("p", { class: "small" }, `${engine}, ${count(found.lines)} lines${found.suspect && found.state === "failed" && !causes.length ? `; an unknown error in line ${found.suspect.line}: ${found.suspect.text}` : ""}`),
      ...causes.map((cause) => h("div", { class: "finding" },
        h("p", {}, h("strong", { class: cause.kind === "note" ? "warn" : "bad" }, cause.kind === "note" ? "note" : "cause"), " ", coded(cause.says)),
        h("p", { class: "small" }, `line ${cause.line}: ${cause.text}`),
        cause.next && h("p", {}, "Next: ", h("code", {}, cause.next)))),
      h("p", { class: "small" }, found.phases.length ? `Phases: ${found.phases.map((each) => each.says.split(",")[0]).join(" → ")}` : "No phase of a start was found."));
    show(finding, true);
  }

  const listener = (name, event) => {
    if (event.model !== shown || !["news", "loaded", "failed", "note"].includes(name)) return;
    const words = event.words ?? (name === "loaded" ? "loaded" : event.why);
    append(h("span", { class: "line mark" }, `${time(Date.now() / 1000)}  ${words}\n`));
  };

  return {
    node,
    show(params) {
      app.listeners.add(listener);
      wanted = params.model ?? model.value;
      this.update(app.state);
    },
    hide() {
      app.listeners.delete(listener);
      stream?.stop();
    },
    update(state) {
      if (!state) return;
      options(model, state.models.map((each) => [each.name, `${each.name} (${each.phase})`]));
      if (wanted !== null) { // the address may be read before the first state comes
        const name = app.get(wanted) ? wanted : model.value;
        wanted = null;
        model.value = name;
        open(name);
        return;
      }
      const now = app.get(shown)?.phase;
      if (shown && now !== phase) {
        phase = now;
        if (status.textContent.includes("no log")) open(shown);
        else diagnose();
      }
    },
  };
}
